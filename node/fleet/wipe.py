"""Erases what a node knows of its users, and its keys: before it is sold, sent in, or given to somebody else.

What goes: generations and the history of prompts (databases), states of prompts, what waits for the network, profiles
and what the fleet put there, this node's key and certificate, logs. What stays are model files and the catalogue, which
hold nothing of anybody, and what is not ours. A fleet's own authority goes only where that is asked for, since no node
could be vouched for again.

A file system may keep old bytes where nobody can see them, and flash always does: against somebody who takes the chips
off, only an encrypted disk helps. What a node has printed is where its standard error went to.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from node.errors import SettingsError
from node.models.partial import sync_folder
from node.prewarm import states
from node.settings import Settings

_OURS = (
    "node-*.db*",
    "fleet-*.db*",
    "outbox-*.db*",
    "inbox-*.db*",
    "later-*.db*",
    "prewarm-*",
    "profiles",
    "profile.toml",
    "profile.new",
    "tuned.toml*",
    "tuning",
    "tuning.lock",
    "model.json",
    "fleet",
    "mesh",
    "*.log",
)
AUTHORITY = "authority"
_STAYS = ("models", "catalog.toml", AUTHORITY)


def ours(home: Path, settings: Settings, *, authority: bool = False) -> list[Path]:
    """Everything that would go, in the data directory and where the settings put it."""
    found = {path for pattern in _OURS for path in home.glob(pattern)}
    if settings.streams.database:
        found.update(_files_of(Path(settings.streams.database).expanduser()))
    if settings.outbox.database:
        box = Path(settings.outbox.database).expanduser()
        for beside in (box, *(box.with_name(f"{box.stem}-{name}{box.suffix}") for name in ("inbox", "later"))):
            found.update(_files_of(beside))
    if settings.prewarm.folder:
        found.update(_states_in(Path(settings.prewarm.folder).expanduser()))
    if authority:
        found.add(home / AUTHORITY)
    return sorted(path for path in found if os.path.lexists(path))


def _files_of(database: Path) -> Iterator[Path]:
    """A database's files, by their exact names: an operator's folder may hold others that begin alike."""
    for ending in ("", "-wal", "-shm", "-journal", ".lock"):
        yield database.with_name(database.name + ending)
    yield from database.parent.glob(f"{glob.escape(database.name)}.corrupt-*")


def _states_in(folder: Path) -> Iterator[Path]:
    """What a node wrote into a folder that an operator named, which may be one for other things as well."""
    for pattern in (f"*{states.SUFFIX}", f"*{states.PART}", "model.json"):
        yield from folder.glob(pattern)


def strangers(home: Path, gone: list[Path]) -> list[Path]:
    """What lies in the data directory and is not known to be anybody's."""
    if not home.is_dir():
        return []
    return sorted(path for path in home.iterdir() if path not in gone and path.name not in _STAYS)


def refuse_running(gone: list[Path]) -> None:
    """Raise SettingsError while a node uses any of it."""
    for path in _locks(gone):
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsError(f"A node is running here: it holds {path}.", hint="Stop it first.") from error
        finally:
            os.close(handle)


def erase(gone: list[Path]) -> int:
    """Erase it for good; gives the bytes. Raises SettingsError; what is gone by then is gone."""
    refuse_running(gone)
    freed = 0
    for path in filter(os.path.lexists, gone):  # a node that has ended meanwhile took some of it along
        try:
            freed += sum(one.lstat().st_size for one in _files(path))
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            sync_folder(path.parent)
        except OSError as error:
            raise SettingsError(f"Cannot erase {path}: {error.strerror}.") from error
    return freed


def _locks(gone: list[Path]) -> Iterator[Path]:
    yield from (path for path in gone if path.name.endswith(".lock") and path.is_file())


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from (one for one in path.rglob("*") if not one.is_dir())
    else:
        yield path
