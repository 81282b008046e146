"""Where variants are made and measured: one model in memory at a time, files in a folder that is gone afterwards.

A node may be running beside it, and memory is for one model more at most; so an engine is opened for every turn and
closed after it. That costs a second of loading and keeps the figures honest: each turn begins from nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from node.engine.base import open_engine
from node.errors import OperatorError
from node.models import lock
from node.models.partial import sync_folder
from node.settings import Engine, home
from node.tuning import quantize, tuned
from node.tuning.gate import Gate, Quality
from node.tuning.reading import passages
from node.tuning.speed import Course, Sizes, first_sizes, sizes
from node.tuning.variants import AS_SHIPPED, ONNX, Speed, Variant, most_bytes

Told = quantize.Told


class Lab:
    """See `tune.Bench`. `source` is the file as shipped, `onnx` the folder that it was converted into, if it was.

    A figure is measured for about `seconds`.
    """

    def __init__(
        self, base: Engine, source: Path, parameters: int, threads: int, seconds: float, onnx: Path | None = None
    ) -> None:
        self._source, self._parameters, self._onnx = source, parameters, onnx
        self._threads, self._seconds = threads, seconds
        self._gate = Gate(base, source)
        self._course: Course | None = None
        self._sizes: Sizes | None = None

    def make(self, form: str) -> int:
        path = self.path(form)
        if path.is_dir():
            return sum(file.stat().st_size for file in path.iterdir())
        if path.exists():
            return path.stat().st_size
        return quantize.requantize(self._source, path, form, self._threads, most_bytes(form, self._parameters))

    def drop(self, form: str) -> None:
        if form not in (AS_SHIPPED, ONNX):
            self.path(form).unlink(missing_ok=True)

    def path(self, form: str) -> Path:
        """Where the weights in this form are."""
        if form == ONNX:
            assert self._onnx is not None, "the space has no such form"
            return self._onnx
        return self._source if form == AS_SHIPPED else workshop() / f"{form}.gguf"

    def speed(self, variant: Variant) -> Speed:
        # A greedy text that runs in circles is guessed at once: drafts would measure the circles, not the weights.
        engine = open_engine(replace(variant.engine, drafts="off"), "tuned", self.path(variant.form))
        try:
            first = first_sizes(variant.engine.slots)
            if self._course is None:
                self._course = Course([id for text in passages() for id in engine.model.encode(text)])
            pace = self._course.run(engine, first)  # also warms up: pages, kernels, the cost of a step
            if self._sizes is None:
                self._sizes = sizes(pace, self._seconds, first, engine.model.info.context)
            # On a slow machine the first figures took longer than any warm-up could spoil.
            return pace if self._sizes == first else self._course.run(engine, self._sizes)
        finally:
            engine.close()

    def quality(self, variant: Variant) -> Quality:
        return self._gate.judge(variant.engine, self.path(variant.form))

    def keep(self, form: str, target: Path) -> None:
        """Give the form's file a place of its own, outside the folder that is cleared."""
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.path(form), target)
        sync_folder(target.parent)


def workshop() -> Path:
    """Where variants are made; on the same disk as the models."""
    return home() / "tuning"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One run at a time in this data directory; clears what it, or a run that was killed, left behind."""
    home().mkdir(parents=True, exist_ok=True)
    with lock.held(_lock(), _refuse):
        shutil.rmtree(workshop(), ignore_errors=True)
        found = tuned.read()
        tuned.sweep(found.weights.file if found and found.weights else "")
        try:
            yield
        finally:
            shutil.rmtree(workshop(), ignore_errors=True)


def clear() -> None:
    """For a run that ends in the middle: what `alone` would clear. The caller is alone."""
    shutil.rmtree(workshop(), ignore_errors=True)
    _lock().unlink(missing_ok=True)


def _lock() -> Path:
    return home() / "tuning.lock"


def _refuse() -> None:
    raise OperatorError(
        "Another run of `outpost tune` is at work in this data directory.",
        hint="Wait for its end. A node tunes by itself while it is idle, unless tune.auto is off.",
    )
