"""One request's sampler chain in llama.cpp.

Order: logit bias, repeat penalty (prompt and answer), presence and frequency penalty (answer only, as OpenAI defines
them), top-k, top-p, min-p, temperature, draw. At temperature 0 the likeliest token is taken after the penalties.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from node.engine.library import llama
from node.engine.vocabulary import Vocabulary
from node.generation import Request

REPEAT_WINDOW = 64  # tokens that the repeat penalty looks back, as in llama.cpp's own tools
_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp's "pick one"; a request's seed must never mean that


class Sampler:
    """Draws tokens for one request; `close` frees it."""

    def __init__(self, request: Request, vocabulary: Vocabulary) -> None:
        self._llama = llama()
        self._chain = self._llama.llama_sampler_chain_init(self._llama.llama_sampler_chain_default_params())
        for link in self._links(request, vocabulary):
            self._llama.llama_sampler_chain_add(self._chain, link)

    def sample(self, context: Any, index: int) -> int:
        """Draw from the logits at batch position `index`, and remember the choice for the penalties."""
        return int(self._llama.llama_sampler_sample(self._chain, context, index))

    def close(self) -> None:
        """Free the chain; it must not be used again."""
        if self._chain is not None:
            self._llama.llama_sampler_free(self._chain)
            self._chain = None

    def _links(self, request: Request, vocabulary: Vocabulary) -> list[Any]:
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
        links.append(self._llama.llama_sampler_init_dist(s.seed % _RANDOM_SEED))
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
