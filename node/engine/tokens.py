"""What the rest of an engine needs to know of a vocabulary, whatever library or file it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Tokens(Protocol):
    """Text to token ids and back, and what the ids mean; reading it is safe from any thread."""

    size: int
    adds_bos: bool

    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""

    @property
    def longest(self) -> int:
        """Bytes of the longest token: so much text at most goes into one."""

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of the markers that `special` parses; they must never come from a user's own words."""

    @property
    def bos_text(self) -> str:
        """What begins a text in this model's templates; empty where it has none."""

    @property
    def eos_text(self) -> str:
        """What ends a text in this model's templates; empty where it has none."""

    def encode(self, text: str, *, special: bool, bos: bool) -> list[int]:
        """Token ids of `text`; `special` lets markers in it become their tokens. Never more ids than bytes + 2."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; empty for control tokens."""

    def decode(self, ids: Sequence[int]) -> bytes:
        """The text's bytes of `ids`."""

    def guide_tokenizer(self) -> Any:
        """The same vocabulary as an llguidance tokenizer; slow to make."""
