"""A llama.cpp model's vocabulary: text to ids and back. Reading it is safe from any thread."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from llguidance import LLTokenizer

from node.engine.library import llama

_PIECE_BYTES = 512


class Vocabulary:
    """Tokenizes and names tokens; `handle` is llama.cpp's vocabulary pointer."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._llama = llama()
        self.size: int = self._llama.llama_vocab_n_tokens(handle)
        self.adds_bos: bool = bool(self._llama.llama_vocab_get_add_bos(handle))
        self._pieces: list[bytes | None] = [None] * self.size

    @functools.cached_property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""
        return frozenset(t for t in range(self.size) if self._llama.llama_vocab_is_eog(self.handle, t))

    @functools.cached_property
    def longest(self) -> int:
        """Bytes of the longest token: so much text at most goes into one."""
        return max(len(self.raw(token)) for token in range(self.size))

    @functools.cached_property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of the markers that `special` parses; they must never come from a user's own words."""
        controls = (self.token_text(token) for token in range(self.size) if self.is_control(token))
        return tuple(text for text in controls if text)

    @functools.cached_property
    def bos_text(self) -> str:
        """What begins a text in this model's templates; empty where it has none."""
        return self.token_text(self._llama.llama_vocab_bos(self.handle))

    @functools.cached_property
    def eos_text(self) -> str:
        """What ends a text in this model's templates; empty where it has none."""
        return self.token_text(self._llama.llama_vocab_eos(self.handle))

    def token_text(self, token: int) -> str:
        """The text that stands for a token in templates; empty for -1, llama.cpp's "none"."""
        return "" if token < 0 else self._llama.llama_vocab_get_text(self.handle, token).decode(errors="replace")

    def is_control(self, token: int) -> bool:
        """Whether the token is a marker that never shows as text."""
        return bool(self._llama.llama_vocab_is_control(self.handle, token))

    def encode(self, text: str, *, special: bool, bos: bool) -> list[int]:
        """Token ids of `text`; `special` lets markers in it become their tokens. Never more ids than bytes + 2."""
        data = text.encode()
        room = len(data) + 2
        ids = (ctypes.c_int32 * room)()
        count = self._llama.llama_tokenize(self.handle, data, len(data), ids, room, bos, special)
        if count < 0:
            raise ValueError(f"the tokenizer needs {-count} ids for {len(data)} bytes")
        return ids[:count]

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; empty for control tokens."""
        known = self._pieces[token]
        if known is None:
            known = self._pieces[token] = b"" if self.is_control(token) else self.raw(token)
        return known

    def raw(self, token: int) -> bytes:
        """The token's bytes, control tokens included."""
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        count = self._llama.llama_token_to_piece(self.handle, token, buffer, _PIECE_BYTES, 0, True)
        if count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = self._llama.llama_token_to_piece(self.handle, token, buffer, -count, 0, True)
        return buffer.raw[: max(count, 0)]

    def decode(self, ids: Sequence[int]) -> bytes:
        """The text's bytes of `ids`."""
        return b"".join(map(self.piece, ids))

    def guide_tokenizer(self) -> Any:
        """llguidance's view of the vocabulary; markers are prefixed with 0xFF so that text can never spell them."""
        tokens = []
        for token in range(self.size):
            raw = self.raw(token)
            tokens.append(b"\xff" + raw if self.is_control(token) else raw)
        return LLTokenizer.from_llamacpp(
            tokens=tokens,
            vocab_ptr=self.handle,
            tokenize_fptr=ctypes.cast(self._llama._lib.llama_tokenize, ctypes.c_void_p).value,
            eos_token=sorted(self.eog) or self._llama.llama_vocab_eos(self.handle),
            slices=None,
        )
