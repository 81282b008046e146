"""The model's file or folder as it may be loaded: there, whole, and not too large for this machine."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from node.engine import onnx_folder, providers
from node.engine.library import llama
from node.errors import ModelFileError, SettingsError
from node.fleet import fit
from node.fleet.footprint import Footprint, footprint
from node.machine.cpu import features, usable_cores
from node.machine.gpu import gpus
from node.machine.memory import memory
from node.models import catalog, convert, gguf
from node.models.weights import served
from node.settings import Settings

log = logging.getLogger(__name__)


def model_file(settings: Settings) -> tuple[str, Path | None]:
    """The model's public name and its checked file; the echo engine needs none. Raises ModelFileError."""
    if settings.engine.kind == "echo":
        return "echo", None
    if settings.engine.kind == "onnx":
        return _onnx(settings)
    weights = served(settings.model)
    header = gguf.read(weights)  # a damaged file gets a better word here than llama.cpp has
    _check_size(settings, weights.name, header)
    name = settings.model.name
    return (Path(name).stem if name.endswith(".gguf") else name), weights


def _onnx(settings: Settings) -> tuple[str, Path]:
    """A folder by its path, or the one that a model was converted into."""
    if settings.engine.kv_type != "f16":
        raise SettingsError(
            "engine.kv_type is llama.cpp's; the cache of an ONNX model has the format it was built with."
        )
    path = Path(settings.model.name).expanduser()
    folder = path if os.sep in settings.model.name or path.is_dir() else _converted(settings)
    use = onnx_folder.read(folder)
    most = memory().most
    if settings.engine.oversize == "refuse" and most is not None and use.weight_bytes > most:
        raise ModelFileError(
            f"{folder.name} needs more memory than there is: {use.weight_bytes >> 20:,} MiB of weights, "
            f"{most >> 20:,} MiB here."
        )
    return (folder.name if folder == path else settings.model.name), folder


def _converted(settings: Settings) -> Path:
    """The folder built for the best provider that is set and seen; raises ModelFileError where there is none."""
    entry = catalog.load().find(settings.model.name)
    wanted = settings.engine.providers
    cuda = ({"auto", "cuda", "tensorrt"} & set(wanted)) and providers.seen("cuda")
    folders = [convert.folder_of(entry.id, target) for target in (("cuda", "cpu") if cuda else ("cpu", "cuda"))]
    for folder in folders:
        if onnx_folder.is_folder(folder):
            return folder
    raise ModelFileError(
        f"{entry.id} was not converted to ONNX yet: there is no {folders[0]}.",
        hint=f"outpost models convert {entry.id}",
    )


def room_beside(settings: Settings) -> bool:
    """Whether what is free now has room for this model beside the one that is served. Raises ModelFileError."""
    if settings.engine.kind == "echo":
        return True
    free = memory().available
    if settings.engine.kind == "onnx":
        need = 2 * onnx_folder.read(_onnx(settings)[1]).weight_bytes  # its buffers are not known before
    else:
        need = _footprint(settings, gguf.read(served(settings.model))).total
    return free is not None and free >= need


def _footprint(settings: Settings, header: gguf.Summary) -> Footprint:
    engine = settings.engine
    use = fit.gpu_use(engine, gpus(), offloads=bool(llama().llama_supports_gpu_offload()))
    return footprint(header, settings, engine.threads or usable_cores(), features(), use)


def _check_size(settings: Settings, name: str, header: gguf.Summary) -> None:
    """Refuse a model that can never fit; say so where it only does not fit now."""
    engine, there = settings.engine, memory()
    need = _footprint(settings, header)
    if engine.oversize == "refuse":
        fit.refuse_too_large(name, need, there)
    if there.available is not None and need.total > there.available:
        log.warning("less memory is free than the model may need", extra={"free": there.available, "need": need.total})
