"""The parts of a loaded model that any thread may use, whatever library holds its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from node.engine.chat import ChatTemplate, no_template
from node.engine.guide import Guide
from node.engine.tokens import Tokens
from node.errors import ContextLengthExceeded
from node.generation import Constraint, ModelInfo


class LoadedModel:
    """See `generation.Model`."""

    def __init__(self, info: ModelInfo, vocabulary: Tokens, template: str | None) -> None:
        self.info = info
        self.vocabulary = vocabulary
        self.guide = Guide(vocabulary)
        self._template = ChatTemplate(template, vocabulary) if template else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self._refuse_hopeless(len(text.encode()), "prompt")
        return self.vocabulary.encode(text, special=special, bos=self.vocabulary.adds_bos)

    def decode(self, ids: Sequence[int]) -> bytes:
        return self.vocabulary.decode(ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        if self._template is None:
            raise no_template()
        self._refuse_hopeless(sum(len(str(message.get("content") or "").encode()) for message in messages), "messages")
        return self._template.ids(messages, tools)

    def check(self, constraint: Constraint) -> None:
        self.guide.check(constraint)

    def _refuse_hopeless(self, size: int, param: str) -> None:
        """Megabytes cannot fit, and tokenizing them takes seconds; what might fit is counted exactly."""
        context = self.info.context
        if size > 8 * context and size > context * self.vocabulary.longest:
            least = size // self.vocabulary.longest
            error = ContextLengthExceeded(least, 1, context)
            error.param = param
            raise error
