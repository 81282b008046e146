"""The yardstick: the leanest decode loop that Python allows over llama.cpp, with nothing of the node in its way.

Model and context are opened by the engine's own code, so that both have the same threads, cache and kernels, whatever
the settings say. The loop is its own: arrays made once, one `llama_decode` a step for all sequences, then one greedy
`llama_sampler_sample` each. No planning, no text, no events, no server.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from node.engine.chat import ChatTemplate
from node.engine.decoder import Decoder
from node.engine.library import llama
from node.errors import EngineFailed
from node.settings import Engine as EngineSettings


@dataclass(frozen=True, slots=True)
class BareRun:
    """`tokens` decoded in `seconds`."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class BareLoop:
    """A loaded model with its context; a context manager. Blocks its thread while it decodes, and idles otherwise."""

    def __init__(self, settings: EngineSettings, weights: Path) -> None:
        self._llama: Any = llama()
        self._decoder = Decoder(settings, weights)
        self._context = self._decoder.context.handle
        self._slots, self._most = settings.slots, settings.batch
        self._batch = self._llama.llama_batch_init(self._most, 0, 1)
        self._chain = self._llama.llama_sampler_chain_init(self._llama.llama_sampler_chain_default_params())
        self._llama.llama_sampler_chain_add(self._chain, self._llama.llama_sampler_init_greedy())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._llama.llama_sampler_free(self._chain)
        self._llama.llama_batch_free(self._batch)
        self._decoder.close()

    def encode(self, question: str) -> list[int]:
        """Token ids of a chat with one question, as the node would see it; plain text where the model cannot chat."""
        vocabulary, template = self._decoder.vocabulary, self._decoder.chat_template
        if template is None:
            return vocabulary.encode(question, special=False, bos=vocabulary.adds_bos)
        return ChatTemplate(template, vocabulary).ids([{"role": "user", "content": question}], ())

    def run(self, prompts: Sequence[Sequence[int]], steps: int) -> BareRun:
        """Read the prompts, then decode `steps` tokens for each of them together; only the latter is timed."""
        self._decoder.context.forget_all()
        count = len(prompts)
        firsts = [self._prefill(slot, ids) for slot, ids in enumerate(prompts)]
        batch, context, chain = self._batch, self._context, self._chain
        tokens, positions = batch.token, batch.pos
        for slot, ids in enumerate(prompts):
            tokens[slot], positions[slot] = firsts[slot], len(ids)
            batch.n_seq_id[slot], batch.seq_id[slot][0], batch.logits[slot] = 1, slot, 1
        batch.n_tokens = count
        decode, sample, slots = self._llama.llama_decode, self._llama.llama_sampler_sample, range(count)
        failed = 0
        started = time.perf_counter()
        for _ in range(steps):
            failed |= decode(context, batch)
            for slot in slots:
                tokens[slot] = sample(chain, context, slot)
                positions[slot] += 1
        seconds = time.perf_counter() - started
        if failed:
            raise EngineFailed(f"llama.cpp could not decode a batch (code {failed}).")
        return BareRun(count * steps, seconds)

    def _prefill(self, slot: int, ids: Sequence[int]) -> int:
        """Read one prompt, in one batch, and draw the first token of its answer."""
        if slot >= self._slots or not 0 < len(ids) <= self._most:
            raise ValueError(f"slot {slot} of {self._slots}, {len(ids)} tokens: the bare loop takes short prompts")
        batch = self._batch
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, slot, 0
        batch.logits[len(ids) - 1] = 1
        batch.n_tokens = len(ids)
        if code := self._llama.llama_decode(self._context, batch):
            raise EngineFailed(f"llama.cpp could not read a prompt (code {code}).")
        return int(self._llama.llama_sampler_sample(self._chain, self._context, len(ids) - 1))
