"""One tuning from settings to `tuned.toml`: what `outpost tune` does, and a node by itself when it is idle."""

from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node.engine.onnx_library import onnxruntime
from node.errors import ModelFileError, NodeError, SettingsError
from node.fleet.footprint import footprint
from node.fleet.model_file import model_file
from node.machine.cpu import allowed_cpus, features, usable_cores
from node.machine.memory import memory
from node.models import gguf, weights
from node.settings import Engine, Prewarm, Settings
from node.tuning import tuned
from node.tuning.fingerprint import machine, sketch, sketch_folder
from node.tuning.lab import Lab
from node.tuning.tune import Limits, Report, Row, Space, Tell, Tuner
from node.tuning.tuned import Folder, Gains, Tuned
from node.tuning.variants import ONNX

log = logging.getLogger(__name__)

_WEIGHTS = {"weights", "packed copy"}  # the parts of a footprint that depend on the form


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a figure is measured, the `plans` of `tune.Limits`, and the most seconds that all may take."""

    seconds: float
    plans: tuple[tuple[int, int], ...]
    most_s: float


FULL = Pace(seconds=0.7, plans=((2, 5), (1, 3), (1, 1)), most_s=86_400.0)
QUICK = Pace(seconds=0.4, plans=((1, 3), (1, 1)), most_s=75.0)


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be tuned: settings without the tuned layer, the operator's own keys, the model's own file."""

    settings: Settings
    fixed: frozenset[str]
    source: Path
    space: Space
    onnx: Path | None = None


def prepare(settings: Settings, chosen: frozenset[str]) -> Job:
    """Look at model and machine; `chosen` are the keys that stay. Raises OperatorError where nothing can be tuned."""
    if settings.engine.kind != "llama":
        raise SettingsError(f"The {settings.engine.kind} engine has nothing to tune; engine.kind must be llama.")
    if settings.model.variant:
        raise SettingsError("model.variant is set by hand, so that tuning has nothing to choose.")
    source = weights.locate(settings.model.name)
    header = gguf.read(source)
    room = _room(header, settings.engine)
    if room is not None and header.file_bytes > room:
        raise ModelFileError(
            f"Tuning loads the model beside what runs, but only {max(room, 0) / 1e6:,.0f} MB of memory are free "
            f"for its {header.file_bytes / 1e6:,.0f} MB of weights.",
            hint="Stop the node or other programs first.",
        )
    fixed = frozenset(key.removeprefix("engine.") for key in chosen if key.startswith("engine."))
    onnx = None if "kind" in fixed else _converted(settings)
    space = Space(
        base=settings.engine,
        shipped=header.quantization,
        parameters=header.parameters,
        bytes=header.file_bytes,
        room=room,
        cores=len(allowed_cpus()),
        threads=usable_cores(),
        fixed=fixed,
        onnx_bytes=sum(file.stat().st_size for file in onnx.iterdir()) if onnx else 0,
    )
    return Job(settings, fixed, source, space, onnx)


def _converted(settings: Settings) -> Path | None:
    """The folder that `outpost models convert` made of this model, if the other engine can serve it here."""
    try:
        onnxruntime()
        engine = msgspec.structs.replace(settings.engine, kind="onnx")
        return model_file(msgspec.structs.replace(settings, engine=engine))[1]
    except NodeError as error:
        log.debug("the ONNX engine is not tried", extra={"reason": error.message})
        return None


def _room(header: gguf.Summary, engine: Engine) -> int | None:
    """The most that weights may take: half of what cache and buffers leave, for llama.cpp may pack a second copy."""
    free = memory().available
    if free is None:
        return None
    alone = Settings(engine=engine, prewarm=Prewarm(enabled=False))  # a lab keeps no prefixes
    need = footprint(header, alone, engine.threads or usable_cores(), features())
    return (free - sum(part.bytes for part in need.parts if part.name not in _WEIGHTS)) // 2


def run(job: Job, pace: Pace, tell: Tell, *, keep: bool) -> Report:
    """Measure; with `keep` write down what came out. The caller holds `lab.alone`. Raises NodeError, OSError."""
    tune = job.settings.tune
    limits = Limits(
        max_kl=tune.max_kl,
        min_agreement=tune.min_agreement,
        min_gain=tune.min_gain,
        budget_s=min(tune.budget_s, pace.most_s),
        plans=pace.plans,
    )
    lab = Lab(job.space.base, job.source, job.space.parameters, job.space.threads, pace.seconds, job.onnx)
    report = Tuner(job.space, limits, lab, tell).run()
    if keep:
        tuned.write(_keep(job, lab, report.winner))
    return report


def _keep(job: Job, lab: Lab, winner: Row | None) -> Tuned:
    """The document, with the winner's file in its place; without a winner it says that there is none."""
    found = Tuned(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=job.settings.model.name,
        source=sketch(job.source),
        machine=machine(),
    )
    if winner is None or winner.ratio is None or winner.quality is None:
        return found
    variant, ratio, quality = winner.variant, winner.ratio, winner.quality
    file = folder = None
    if variant.form == ONNX and job.onnx is not None:
        folder = Folder(name=job.onnx.name, sketch=sketch_folder(job.onnx))
    elif variant.form:
        target = weights.folder() / tuned.variant_name(job.source, variant.form)
        lab.keep(variant.form, target)
        file = tuned.described(target, variant.form)
    gains = Gains(
        decode=round(ratio.decode, 3),
        prefill=round(ratio.prefill, 3),
        streams=round(ratio.streams, 3),
        kl=round(quality.kl, 5),
        agreement=round(quality.agreement, 4),
    )
    engine = variant.differences(job.space.base)
    return msgspec.structs.replace(found, weights=file, onnx=folder, gains=gains, engine=engine)
