"""The vocabulary of an ONNX folder: `tokenizer.json` as Hugging Face's tokenizers write it, read by llguidance.

llguidance carries that library inside, is needed for structured output anyway, and gives bytes for every token.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from llguidance import LLTokenizer

from node.errors import ModelFileError

# Markers that end a text in the model families of today, as llama.cpp has them: a file often names only one of those
# that its model writes. The second line begins another file of a code base.
_ENDS = {"<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>", "</s>", "<eos>",
         "<reponame>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"}  # fmt: skip


class _Added(msgspec.Struct, frozen=True):
    id: int
    content: str
    special: bool = False


class _Step(msgspec.Struct, frozen=True):
    """One piece of a post-processor's template: {"SpecialToken": …} or {"Sequence": …}."""

    special: Mapping[str, Any] | None = msgspec.field(name="SpecialToken", default=None)


class _Processor(msgspec.Struct, frozen=True):
    single: Sequence[_Step] = ()
    processors: Sequence[_Processor] = ()


class _Document(msgspec.Struct, frozen=True):
    added_tokens: Sequence[_Added] = ()
    post_processor: _Processor | None = None


class JsonVocabulary:
    """See `engine.tokens.Tokens`; `size` is how many logits the model has, `eos` the ends that its folder names."""

    def __init__(self, text: str, config: Mapping[str, Any], size: int, eos: Collection[int]) -> None:
        try:
            document = msgspec.json.decode(text, type=_Document)
            self._tokenizer = LLTokenizer(text, n_vocab=size, eos_token=sorted(eos))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ModelFileError(f"tokenizer.json cannot be used: {error}.") from error
        self.size = size
        self._controls = {token.id: token.content for token in document.added_tokens if token.special}
        self.eog = frozenset(eos) | {token for token, content in self._controls.items() if content in _ENDS}
        self.bos_text, self.eos_text = _text(config.get("bos_token")), _text(config.get("eos_token"))
        self._bos = next((token for token, content in self._controls.items() if content == self.bos_text), None)
        named = config.get("add_bos_token")
        self.adds_bos = self._bos is not None and (_begins_special(document) if named is None else bool(named))
        texts = sorted(self._controls.values(), key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._pieces: list[bytes | None] = [None] * size

    @functools.cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.raw(token)) for token in range(self.size))

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of the markers."""
        return tuple(self._controls.values())

    def encode(self, text: str, *, special: bool, bos: bool) -> list[int]:
        """Token ids of `text`; without `special` every marker in it is cut in two, so that it stays words."""
        parts = [text] if special or self._markers is None else self._cut(self._markers, text)
        ids = [self._bos] if bos and self._bos is not None else []
        for part in parts:
            ids += self._tokenizer.tokenize_str(part)
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; empty for control tokens."""
        known = self._pieces[token]
        if known is None:
            known = self._pieces[token] = b"" if token in self._controls else self.raw(token)
        return known

    def raw(self, token: int) -> bytes:
        """The token's bytes, control tokens included."""
        return bytes(self._tokenizer.decode_bytes([token]))

    def decode(self, ids: Sequence[int]) -> bytes:
        """The text's bytes of `ids`."""
        return b"".join(map(self.piece, ids))

    def guide_tokenizer(self) -> Any:
        """The same vocabulary for llguidance, which ends a text with any token that ends a generation."""
        return self._tokenizer

    @staticmethod
    def _cut(markers: re.Pattern[str], text: str) -> list[str]:
        """The text, cut behind the first character of every marker."""
        cuts = [0, *(found.start() + 1 for found in markers.finditer(text)), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(cuts) if start < end]


def _text(value: Any) -> str:
    """A token in tokenizer_config.json is its text, or an object that has it."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _begins_special(document: _Document) -> bool:
    """Whether the post-processor puts a token before every text."""
    first = document.post_processor
    for processor in (first, *first.processors) if first else ():
        if processor is not None and processor.single:
            return processor.single[0].special is not None
    return False
