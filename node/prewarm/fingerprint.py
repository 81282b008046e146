"""What a state on disk depends on: the model's bytes, the engine's settings, the library, the machine.

A state that was made under another fingerprint is not used. Settings that only say how requests are scheduled are named
here; every other one, also one that comes to be later, counts.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from importlib import metadata
from pathlib import Path

import msgspec

from node.settings import Engine

log = logging.getLogger(__name__)

_SCHEDULING = {"slots", "threads", "step_ms", "urgent_step_ms", "prefill_step_ms", "pooling", "batch", "ubatch"}
_NOTE = "model.json"
_CHUNK = 1 << 20


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hash of a file that had this size and time of change."""

    path: str
    size: int
    changed_ns: int
    sha256: str


def fingerprint(settings: Engine, weights: Path | None, folder: Path) -> str:
    """A digest of everything that a state depends on; raises OSError. `folder` remembers the model file's hash."""
    values = {key: value for key, value in msgspec.to_builtins(settings).items() if key not in _SCHEDULING}
    model = hash_of(weights, folder) if weights else ""
    parts = [values, model, _library(settings.kind), platform.machine()]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def likeness(settings: Engine, weights: Path | None, folder: Path) -> str:
    """A digest that two nodes share when they make the same tokens of the same request; raises OSError.

    Of an ONNX model, which is a folder, it takes the names, sizes and ends of its files.
    """
    if weights is None:
        model = ""
    elif weights.is_dir():
        model = hashlib.sha256(b"".join(map(_ends, sorted(weights.iterdir())))).hexdigest()
    else:
        model = hash_of(weights, folder)
    parts = [settings.kind, settings.kv_type, model, _library(settings.kind)]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def _ends(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _CHUNK))
        last = file.read(_CHUNK)
        file.seek(0)
        first = file.read(_CHUNK)
    return hashlib.sha256(f"{path.name} {size} ".encode() + first + last).digest()


def hash_of(weights: Path, folder: Path) -> str:
    """The SHA-256 of a model file, remembered in `folder` while size and time of change stay; raises OSError."""
    if (known := _remembered(weights, folder)) is not None:
        return known
    real, stat = weights.resolve(), weights.stat()
    digest = hashlib.sha256()
    with real.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    note = _Note(str(real), stat.st_size, stat.st_mtime_ns, digest.hexdigest())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = folder / f"{_NOTE}.part"
    part.write_bytes(msgspec.json.encode(note))
    part.replace(folder / _NOTE)
    return note.sha256


def _remembered(weights: Path, folder: Path) -> str | None:
    stat = weights.stat()
    try:
        note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        log.warning("what was noted of the model file cannot be read; it is hashed again")
        return None
    same = (note.path, note.size, note.changed_ns) == (str(weights.resolve()), stat.st_size, stat.st_mtime_ns)
    return note.sha256 if same else None


def _library(kind: str) -> str:
    return metadata.version("llama-cpp-python") if kind == "llama" else ""
