"""One request's sampler chain in llama.cpp.

Order: logit bias, repeat penalty (prompt and answer), presence and frequency penalty (answer only, as OpenAI defines
them), top-k, top-p, min-p, temperature, draw. At temperature 0 the likeliest token is taken after the penalties.

Every draw has a seed of its own, made from the request's seed and the token's number in the answer. So a generation
that goes on after a restart needs no generator's state: the seed and the count are all of it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from node.engine.library import llama
from node.engine.tokens import Tokens
from node.generation import Request

REPEAT_WINDOW = 64  # tokens that the repeat penalty looks back, as in llama.cpp's own tools
_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp's "pick one"; a request's seed must never mean that


class Sampler:
    """Draws tokens for one request; `close` frees it."""

    def __init__(self, request: Request, vocabulary: Tokens) -> None:
        self._llama = llama()
        self._chain = self._llama.llama_sampler_chain_init(self._llama.llama_sampler_chain_default_params())
        self._seed = request.sampling.seed if request.sampling.temperature > 0 else None
        for link in self._links(request, vocabulary):
            self._llama.llama_sampler_chain_add(self._chain, link)
        for token in request.continued:
            self._llama.llama_sampler_accept(self._chain, token)

    def sample(self, context: Any, index: int, number: int) -> int:
        """Draw token `number` of the answer from the logits at batch position `index`; the penalties remember it."""
        self._seed_draw(number)
        return int(self._llama.llama_sampler_sample(self._chain, context, index))

    def pick(self, candidates: Candidates, number: int) -> int:
        """Draw token `number` of the answer from logits of any origin; uses the candidates up."""
        self._seed_draw(number)
        self._llama.llama_sampler_apply(self._chain, ctypes.byref(candidates.array))
        token = candidates.selected
        self._llama.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Free the chain; it must not be used again."""
        if self._chain is not None:
            self._llama.llama_sampler_free(self._chain)
            self._chain = None

    def _seed_draw(self, number: int) -> None:
        if self._seed is not None:
            last = self._llama.llama_sampler_chain_n(self._chain) - 1
            self._llama.llama_sampler_free(self._llama.llama_sampler_chain_remove(self._chain, last))
            draw = self._llama.llama_sampler_init_dist(draw_seed(self._seed, number))
            self._llama.llama_sampler_chain_add(self._chain, draw)

    def _links(self, request: Request, vocabulary: Tokens) -> list[Any]:
        s = request.sampling
        links = []
        bias = list(s.logit_bias)
        if request.ignore_eos:
            bias += [(token, -math.inf) for token in vocabulary.eog]
        if bias:
            links.append(self._bias(bias, vocabulary.size))
        if s.repeat_penalty != 1.0:
            links.append(self._repeat(s.repeat_penalty, request.prompt, vocabulary.size))
        if s.presence_penalty or s.frequency_penalty:
            links.append(
                self._llama.llama_sampler_init_penalties(
                    vocabulary.size, max(1, request.max_tokens), 1.0, s.frequency_penalty, s.presence_penalty
                )
            )
        if s.temperature == 0:
            return [*links, self._llama.llama_sampler_init_greedy()]
        if s.top_k:
            links.append(self._llama.llama_sampler_init_top_k(s.top_k))
        if s.top_p < 1:
            links.append(self._llama.llama_sampler_init_top_p(s.top_p, 1))
        if s.min_p > 0:
            links.append(self._llama.llama_sampler_init_min_p(s.min_p, 1))
        links.append(self._llama.llama_sampler_init_temp(s.temperature))
        links.append(self._llama.llama_sampler_init_dist(0))  # replaced before every draw
        return links

    def _bias(self, bias: Sequence[tuple[int, float]], size: int) -> Any:
        array = (self._llama.llama_logit_bias * len(bias))()
        for entry, (token, value) in zip(array, bias, strict=True):
            entry.token, entry.bias = token, value
        pointer = ctypes.cast(array, ctypes.POINTER(self._llama.llama_logit_bias))
        return self._llama.llama_sampler_init_logit_bias(size, len(bias), pointer)  # copies the array

    def _repeat(self, penalty: float, prompt: Sequence[int], size: int) -> Any:
        link = self._llama.llama_sampler_init_penalties(size, REPEAT_WINDOW, penalty, 0.0, 0.0)
        for token in prompt[-REPEAT_WINDOW:]:
            self._llama.llama_sampler_accept(link, token)
        return link


class Candidates:
    """Every token with its logit, as llama.cpp's samplers take them; one may serve many draws, one after another."""

    def __init__(self, size: int) -> None:
        library = llama()
        self._tokens = np.zeros(size, np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
        self._ids = np.arange(size, dtype=np.int32)
        self.array = library.llama_token_data_array()
        self._pointer = self._tokens.ctypes.data_as(ctypes.POINTER(library.llama_token_data))

    def fill(self, logits: npt.NDArray[np.float32]) -> Candidates:
        """Take one token's logits, `[vocabulary]`; samplers sort and cut what was here before."""
        self._tokens["id"] = self._ids
        self._tokens["logit"] = logits
        self.array.data, self.array.size = self._pointer, len(self._ids)
        self.array.selected, self.array.sorted = -1, False
        return self

    @property
    def selected(self) -> int:
        """The token that was drawn."""
        return int(self.array.data[self.array.selected].id)


def draw_seed(seed: int, number: int) -> int:
    """A 32-bit seed for token `number`: splitmix64 (Steele, Lea, Flood 2014) of both, folded."""
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) % _RANDOM_SEED
