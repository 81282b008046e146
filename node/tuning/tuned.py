"""`tuned.toml`: what tuning found for one model on one machine, as a layer under the operator's settings.

It counts only where everything is as it was measured: the same model file, the same processor, cores and llama.cpp, and
the variant's file whole to the byte. Where anything differs, the file as shipped is served and a log line says why; a
tuning that found nothing is written down too, so that it is not done again.

Order of writing, so that a power cut at any point leaves a node that serves: first the variant's file, then
`tuned.toml` (temporary file, fsync, rename), then older variants are deleted. Taking back goes the other way round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from node.errors import NodeError
from node.models import weights
from node.models.partial import sync_folder
from node.settings import Engine, Settings, home
from node.tuning.fingerprint import Machine, machine, sketch, sketch_folder

log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 64 << 10
_MARK = ".tuned-"  # in the name of a variant's file

FileName = Annotated[str, msgspec.Meta(pattern=r"\A[^/\x00-\x1f]+\.gguf\Z", max_length=255)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The variant's file, in the models folder."""

    file: FileName
    form: str
    bytes: int
    sha256: Sha256


class Folder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The converted model that the other engine serves; a folder in the models folder, which is not ours to delete."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[^/\x00-\x1f.][^/\x00-\x1f]*\Z", max_length=255)]
    sketch: Sha256


class Gains(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Over the file as shipped, as measured; for people."""

    decode: float
    prefill: float
    streams: float
    kl: float
    agreement: float


class Tuned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document. Without `weights` and `onnx` the file as shipped is served; `engine` are the changed keys."""

    made: str  # UTC, for people
    model: str
    source: Sha256
    machine: Machine
    weights: Weights | None = None
    onnx: Folder | None = None
    gains: Gains | None = None
    engine: dict[str, str | int] = {}

    @property
    def form(self) -> str:
        """What is served, for people."""
        return self.weights.form if self.weights else "ONNX" if self.onnx else "as shipped"


def file() -> Path:
    """Where it is, or would be."""
    return home() / "tuned.toml"


def read() -> Tuned | None:
    """The document; None where there is none. A broken one is logged and counts as none."""
    try:
        if file().stat().st_size > _MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
        found = msgspec.convert(tomllib.loads(file().read_text(encoding="utf-8")), Tuned)
        msgspec.convert(found.engine, Engine)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # TOML's, UTF-8's and msgspec's errors are ValueErrors
        log.warning("tuned.toml is ignored", extra={"reason": str(error)})
        return None
    return found


def layer(settings: Settings) -> Mapping[str, Mapping[str, Any]]:
    """The settings that tuning adds for this model on this machine; {} where it has nothing to say."""
    found = read() if settings.tune.use and settings.engine.kind == "llama" else None
    if found is None:
        return {}
    try:
        reason = difference(found, settings.model.name) or damage(found)
    except (NodeError, OSError) as error:
        reason = str(error)
    if reason:
        log.warning("tuned.toml is ignored; the model is served as shipped", extra={"reason": reason})
        return {}
    tree: dict[str, Mapping[str, Any]] = {"engine": found.engine} if found.engine else {}
    if found.weights is not None:
        tree["model"] = {"variant": str(variant_path(found.weights))}
    if tree:
        log.info("what tuning found is used", extra={"form": found.form, "engine": found.engine})
    return tree


def difference(found: Tuned, model: str) -> str:
    """What is not as it was when it was measured; "" where nothing is. Raises ModelFileError where no model is."""
    if found.model != model:
        return f"it is for the model {found.model}, not {model}"
    if changed := found.machine.difference(machine()):
        return f"it is for another machine: {changed}"
    return "" if sketch(weights.locate(model)) == found.source else "the model's file is another one"


def write(found: Tuned) -> None:
    """Put the document in place, then delete the files of other variants. Raises OSError."""
    temporary = file().with_name(file().name + ".new")
    try:
        with temporary.open("w", encoding="utf-8") as opened:
            opened.write(as_toml(found))
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file())
        sync_folder(home())
    finally:
        temporary.unlink(missing_ok=True)
    sweep(found.weights.file if found.weights else "")


def of(model: str) -> Tuned | None:
    """What is written down for the model of this name, whether it still holds or not."""
    found = read()
    return found if found and found.model == model else None


def clear() -> int:
    """Take everything back; gives the bytes freed. Raises OSError."""
    file().unlink(missing_ok=True)
    if home().exists():
        sync_folder(home())
    return sweep("")


def sweep(keep: str) -> int:
    """Delete variants' files but one; gives the bytes freed."""
    freed = 0
    for path in variants():
        if path.name != keep:
            freed += path.stat().st_size
            path.unlink()
    return freed


def variants() -> Iterator[Path]:
    """Files of variants in the models folder."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted(path for path in weights.folder().iterdir() if _MARK in path.name and path.suffix == ".gguf")


def variant_name(source: Path, form: str) -> str:
    """The name of a variant's file."""
    return f"{source.stem}{_MARK}{form.lower()}.gguf"


def variant_path(found: Weights) -> Path:
    """Where a variant's file is."""
    return weights.folder() / found.file


def described(path: Path, form: str) -> Weights:
    """What `tuned.toml` says of a file that is there."""
    return Weights(file=path.name, form=form, bytes=path.stat().st_size, sha256=_digest(path))


def damage(found: Tuned) -> str:
    """What is wrong with what it wants served; "" where that is whole."""
    if found.onnx is not None:
        folder = weights.folder() / found.onnx.name
        if importlib.util.find_spec("onnxruntime") is None:
            return "ONNX Runtime is not installed"
        return "" if folder.is_dir() and sketch_folder(folder) == found.onnx.sketch else f"{folder} is not what it was"
    if found.weights is None:
        return ""
    path = variant_path(found.weights)
    if not path.exists():
        return f"{path} is missing"
    if path.stat().st_size != found.weights.bytes or _digest(path) != found.weights.sha256:
        return f"{path} is damaged"
    return ""


def as_toml(found: Tuned) -> str:
    """The document as text; TOML's basic strings, lists and numbers are written as JSON's."""
    tree = msgspec.to_builtins(found)
    lines = ["# Written by `outpost tune`; `outpost tune --clear` takes it back.", ""]
    tables = {key: value for key, value in tree.items() if isinstance(value, dict)}
    lines += [f"{key} = {_dumps(value)}" for key, value in tree.items() if key not in tables and value is not None]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_dumps(value)}" for key, value in table.items())]
    return "\n".join(lines).replace("\x7f", "\\u007f") + "\n"


def _dumps(value: Any) -> str:
    # TOML knows no surrogates, so what is not ASCII stays as it is.
    return json.dumps(value, ensure_ascii=False)


def _digest(path: Path) -> str:
    return weights.digest(path, path.stat().st_size, lambda stage, done, total: None, path.name)
