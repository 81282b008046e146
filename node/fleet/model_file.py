"""The model's file as it may be loaded: there, whole, and not too large for this machine."""

from __future__ import annotations

import logging
from pathlib import Path

from node.engine.library import llama
from node.fleet import fit
from node.fleet.footprint import footprint
from node.machine.cpu import features, usable_cores
from node.machine.gpu import gpus
from node.machine.memory import memory
from node.models import gguf
from node.models.weights import served
from node.settings import Settings

log = logging.getLogger(__name__)


def model_file(settings: Settings) -> tuple[str, Path | None]:
    """The model's public name and its checked file; the echo engine needs none. Raises ModelFileError."""
    if settings.engine.kind == "echo":
        return "echo", None
    weights = served(settings.model)
    header = gguf.read(weights)  # a damaged file gets a better word here than llama.cpp has
    _check_size(settings, weights.name, header)
    name = settings.model.name
    return (Path(name).stem if name.endswith(".gguf") else name), weights


def _check_size(settings: Settings, name: str, header: gguf.Summary) -> None:
    """Refuse a model that can never fit; say so where it only does not fit now."""
    engine, there = settings.engine, memory()
    use = fit.gpu_use(engine, gpus(), offloads=bool(llama().llama_supports_gpu_offload()))
    need = footprint(header, settings, engine.threads or usable_cores(), features(), use)
    if engine.oversize == "refuse":
        fit.refuse_too_large(name, need, there)
    if there.available is not None and need.total > there.available:
        log.warning("less memory is free than the model may need", extra={"free": there.available, "need": need.total})
