"""The weights that are here: which, whether they are still what they were, and where."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from node import settings
from node.errors import ModelFileError
from node.models import catalog, lock, pull
from node.models.catalog import Entry
from node.models.download import Report
from node.models.partial import CHUNK, sync_folder


def folder() -> Path:
    """Where weights live; need not exist yet."""
    return settings.home() / "models"


def path_of(entry: Entry) -> Path:
    """Where this model's weights are, or would be."""
    return folder() / entry.file


def installed(entry: Entry) -> bool:
    """Whether the weights are here; quick, by name and size."""
    with contextlib.suppress(OSError):
        return pull.is_whole(entry, path_of(entry))
    return False


def fetched_bytes(entry: Entry) -> int:
    """What an interrupted pull has left to go on from."""
    with contextlib.suppress(OSError):
        return pull.part_path(path_of(entry)).stat().st_size
    return 0


def verify(entry: Entry, progress: Report) -> None:
    """Hash the weights again; raises ModelFileError that says what differs."""
    path = path_of(entry)
    mend = f"outpost models remove {entry.id} && outpost models pull {entry.id}"
    try:
        size = path.stat().st_size
        if size != entry.size:
            raise ModelFileError(f"{path} is {size:,} bytes, but {entry.id} has {entry.size:,}.", hint=mend)
        found = digest(path, size, progress, entry.id)
    except FileNotFoundError as error:
        raise not_installed(entry) from error
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror}.", hint=mend) from error
    if found != entry.sha256:
        raise ModelFileError(
            f"{path} is damaged: its SHA-256 is not that of {entry.id}.\n  promised {entry.sha256}\n  found    {found}",
            hint=mend,
        )


def digest(path: Path, size: int, progress: Report, name: str) -> str:
    """The file's SHA-256; raises OSError. `progress` is told of `size` bytes under `name`."""
    hashed, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
            done += len(chunk)
            progress(f"verifying {name}", done, size)
    return hashed.hexdigest()


def remove(entry: Entry) -> int:
    """Delete the weights and what an interrupted pull left; returns the bytes freed. Raises ModelFileError."""
    path = path_of(entry)
    if not path.exists() and not fetched_bytes(entry):
        raise not_installed(entry)
    try:
        with lock.held(pull.lock_path(path), lambda: _refuse_busy(entry)):
            freed = fetched_bytes(entry) + (path.stat().st_size if path.exists() else 0)
            path.unlink(missing_ok=True)
            pull.tidy(path)
            sync_folder(path.parent)
    except OSError as error:
        raise ModelFileError(f"Cannot remove {path}: {error.strerror}.") from error
    return freed


def locate(name: str) -> Path:
    """The weights that `model.name` means: a model's id, or the path of a GGUF file. Raises ModelFileError."""
    if name.lower().endswith(".gguf") or os.sep in name:
        return _checked_path(Path(os.path.expanduser(name)))
    entry = catalog.load().find(name)
    if not installed(entry):
        raise not_installed(entry)
    return path_of(entry)


def served(model: settings.Model) -> Path:
    """The file to load: another form of the model where one is set, else the model's own. Raises ModelFileError."""
    return _checked_path(Path(model.variant).expanduser()) if model.variant else locate(model.name)


def not_installed(entry: Entry) -> ModelFileError:
    """The error for weights that were never fetched."""
    return ModelFileError(f"The model {entry.id} is not installed.", hint=f"outpost models pull {entry.id}")


def _checked_path(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise ModelFileError(
            f"There is no file {path}.", hint="`outpost models list` shows the models that can be fetched by name."
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ModelFileError(f"Cannot open {str(path)!a}: {error}.") from error
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path} is no file; model.name must be the path of a GGUF file.")
    return path


def _refuse_busy(entry: Entry) -> None:
    raise ModelFileError(f"{entry.id} is being fetched right now.", hint="Stop that first, or wait for its end.")
