"""A model that can be taken away while other threads use it.

A library's vocabulary is memory that goes with the model: whoever tokenizes while it is freed would crash the process.
So what the rest of the node holds is this, which counts who is inside; `take_back` waits for them, and whoever comes
afterwards is told to ask the model that is served then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from node.errors import Unavailable
from node.generation import Constraint, Model, ModelInfo


class Lent:
    """A `Model` that ends with `take_back`."""

    def __init__(self, model: Model) -> None:
        self._model: Model | None = model
        self._changed = threading.Condition()
        self._inside = 0
        self.info: ModelInfo = model.info

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        with self._use() as model:
            return model.encode(text, special=special)

    def decode(self, ids: Sequence[int]) -> bytes:
        with self._use() as model:
            return model.decode(ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        with self._use() as model:
            return model.chat(messages, tools)

    def check(self, constraint: Constraint) -> None:
        with self._use() as model:
            model.check(constraint)

    def take_back(self) -> None:
        """Nobody uses it any more when this returns; it may wait as long as a long prompt is tokenized."""
        with self._changed:
            self._model = None
            self._changed.wait_for(lambda: self._inside == 0)

    @contextlib.contextmanager
    def _use(self) -> Iterator[Model]:
        with self._changed:
            model = self._model
            if model is None:
                raise Unavailable("The model was just exchanged for another one; ask again.", retry_after=1)
            self._inside += 1
        try:
            yield model
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()
