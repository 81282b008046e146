"""A node as its users run it: a process."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.settings import home


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`outpost serve` on a free port, and its address once it is ready; killed at the end if it still runs."""
    command = [sys.executable, "-m", "node", "serve", "--port", "0", *arguments]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OUTPOST_") or key == "OUTPOST_HOME"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stderr=errors, env={**clean, **environment}) as process,
    ):
        try:
            yield process, _address(process, errors.fileno())
        finally:
            process.kill()


def _address(process: subprocess.Popen[str], errors: int) -> str:
    for _ in range(1200):
        printed = os.pread(errors, 1 << 20, 0).decode()
        if "stop   Ctrl-C" in printed:
            found = re.search(r"answers at (https?://[0-9.:]+)", printed)
            assert found
            return found[1]
        if process.poll() is not None:
            raise AssertionError(f"the node ended with {process.returncode}:\n{printed}")
        time.sleep(0.05)
    raise AssertionError("the node did not start")


def home_with_models(folder: Path) -> str:
    """A data directory for OUTPOST_HOME with the models of the real one: what a node with a port keeps goes here."""
    made = folder / "home"
    made.mkdir(exist_ok=True)
    if not (made / "models").is_symlink():
        (made / "models").symlink_to(home() / "models")
    return str(made)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Wait until the node at `url` says that it is ready."""
    for _ in range(int(seconds / 0.02)):
        if process.poll() is not None:
            raise AssertionError(f"the node ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=2) as response:
                if response.status == 200:
                    return
        except urllib.error.HTTPError as early:
            early.close()  # it holds a socket
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError("the node did not become ready")
