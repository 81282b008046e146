"""What llama.cpp itself takes for the rest of a prompt whose beginning is in its cache already, without a node.

The rows of a rest attend to every token before them. So the time to read the rest alone, at the beginning of an empty
cache, is less than anybody can reach behind a long prefix; this is what can be reached.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from node.bench.replay import Ids
from node.engine.blocks import common_length
from node.engine.context import Part
from node.engine.decoder import Decoder
from node.settings import Engine


class Behind:
    """A loaded model with one sequence in an otherwise empty cache; a context manager. Not for two threads at once."""

    def __init__(self, settings: Engine, weights: Path) -> None:
        self._decoder = Decoder(msgspec.structs.replace(settings, slots=1, kv_tokens=0), weights)
        self._held = np.empty(0, np.int32)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._decoder.close()

    def seconds(self, prompt: Ids, warm: int) -> float:
        """How long all after the first `warm` tokens of a prompt takes, until there are logits for its last one."""
        ids = np.array(prompt, np.int32)
        kept = min(common_length(self._held, ids), warm)
        self._decoder.context.trim(0, kept)
        self._read(ids, kept, warm)
        began = time.perf_counter()
        self._read(ids, warm, len(ids))
        seconds = time.perf_counter() - began
        self._held = ids
        return seconds

    def _read(self, ids: np.ndarray[tuple[int], np.dtype[np.int32]], start: int, end: int) -> None:
        context = self._decoder.context
        for at in range(start, end, context.batch):
            part = ids[at : min(at + context.batch, end)]
            context.decode([Part(0, at, part, 1)])
            context.logits(len(part) - 1)
