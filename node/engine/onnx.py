"""The ONNX Runtime engine: continuous batching over one KV cache row a sequence.

A step is: plan (`batch`), feed the graph (`onnx_session`), sample what got output. All answers that stream are fed
together, one token each; a prompt is fed by itself, in chunks. Sequences that work sit in the rows 0, 1, 2 … without a
gap, so that they are neighbours in memory; one that is held has its cells saved elsewhere and gives its row to others.

The kernels round differently for one token and for several, and quantized weights make that visible. So tokens of an
answer are always fed one by one, also those of an earlier life (`Request.continued`), and those of a prompt never: the
same seed gives the same text, however the prompt was cut, whoever runs beside it, and whether it was interrupted.

Sampling, constraints, templates and plans are those of the llama.cpp engine: a request means the same on both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from node.engine import distribution, onnx_folder, seats
from node.engine.answers import Answers
from node.engine.base import EngineLoad, Threads, Warming
from node.engine.batch import Chunk, Plan, Row, StepCost, plan_step
from node.engine.guide import unusable
from node.engine.kvrows import Cells
from node.engine.model import LoadedModel
from node.engine.onnx_session import Floats, OnnxSession
from node.engine.running import Running
from node.engine.sampling import Candidates, Sampler
from node.engine.tokenizer_json import JsonVocabulary
from node.generation import Embedded, Event, Failed, Finished, Model, ModelInfo, Request, Started, Token
from node.settings import Engine as EngineSettings

log = logging.getLogger(__name__)

CHUNK = 512  # tokens of a prompt that are fed at once: bounds the memory of a step
_CHUNK_UNPRUNED = 64  # the same for a graph that gives the logits of every one of them


class OnnxEngine:
    """See `engine.base.Engine`."""

    def __init__(self, settings: EngineSettings, name: str, path: Path) -> None:
        folder = onnx_folder.read(path)
        self._settings = settings
        context = min(settings.context or folder.context_length, folder.context_length)
        self._vocabulary = JsonVocabulary(folder.tokenizer, folder.tokenizer_config, folder.vocabulary_size, folder.eos)
        self._session = OnnxSession(folder, settings, context)
        self._pooling = distribution.pooling(settings.pooling, "none")
        info = ModelInfo(
            id=name,
            engine="onnx",
            created=int(folder.graph.stat().st_mtime),
            context=context,
            slots=settings.slots,
            vocabulary_size=folder.vocabulary_size,
            embedding_size=0 if self._pooling == "none" else folder.state_size,
            can_chat=folder.chat_template is not None,
            parked=seats.parked(settings.slots),
        )
        self._loaded = LoadedModel(info, self._vocabulary, folder.chat_template)
        self.model: Model = self._loaded
        self.warm: Warming | None = None
        self.answers: Answers | None = None
        self.cores: Threads | None = None  # ONNX Runtime's pool of threads is made once
        self._chunk = CHUNK if folder.pruned else _CHUNK_UNPRUNED
        self._cells = max(settings.kv_tokens, context)
        self._cost = StepCost()
        self._candidates = Candidates(folder.vocabulary_size)
        self._sequences: dict[str, Running] = {}  # oldest first
        self._seated: list[Running] = []  # by row
        self._saved: dict[str, Cells] = {}  # of those that have no row
        self._events: list[tuple[str, Event]] = []

    def add(self, request: Request) -> None:
        seats.need_slot(self.load.active, self._settings.slots)
        seats.need_seat(len(self._sequences), self._settings.slots)
        sampler = Sampler(request, self._vocabulary) if request.kind == "generate" else None
        matcher = self._loaded.guide.matcher(request.constraint) if request.constraint else None
        if matcher:
            for token in request.continued:
                matcher.accept(token)
        sequence = self._sequences[request.id] = Running(request, -1, sampler, matcher)
        sequence.length = len(request.prompt)  # what was answered before follows token by token

    def cancel(self, request_id: str) -> None:
        if sequence := self._sequences.get(request_id):
            self._end(sequence, Finished("cancelled", len(sequence.request.prompt), sequence.generated))

    def hold(self, request_id: str, held: bool) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.held == held:
            return
        if not held:
            seats.need_slot(self.load.active, self._settings.slots)
        sequence.held = held
        if held and sequence.slot >= 0:
            if sequence.cached:
                self._saved[request_id] = self._session.rows.save(sequence.slot, sequence.cached)
            self._unseat(sequence)

    def step(self) -> list[tuple[str, Event]]:
        if self.load.active:
            self._seat()
            if (plan := self._plan()).chunks:
                self._run(plan)
        events, self._events = self._events, []
        return events

    def fail_all(self) -> list[str]:
        lost = list(self._sequences)
        for sequence in list(self._sequences.values()):
            self._release(sequence)
        self._events.clear()
        return lost

    @property
    def load(self) -> EngineLoad:
        sequences = self._sequences.values()
        active, used = sum(not s.held for s in sequences), sum(s.cached for s in sequences)
        return EngineLoad(len(sequences), active, used, self._cells)

    def close(self) -> None:
        self.fail_all()

    def _seat(self) -> None:
        """Give free rows to those that wait for one, oldest first."""
        for sequence in self._sequences.values():
            if len(self._seated) == self._settings.slots:
                return
            if sequence.slot < 0 and not sequence.held:
                sequence.slot = len(self._seated)
                self._seated.append(sequence)
                if (cells := self._saved.pop(sequence.request.id, None)) is not None:
                    self._session.rows.restore(sequence.slot, cells)

    def _unseat(self, sequence: Running) -> None:
        """Take a row away; the last row moves into it, so that there is no gap."""
        row, last = sequence.slot, self._seated.pop()
        if last is not sequence:
            self._session.rows.move(last.slot, row, last.cached)
            self._seated[row] = last
        self._session.rows.clear(len(self._seated))
        last.slot = row
        sequence.slot = -1

    def _plan(self) -> Plan:
        """The next step, with the cells it needs made free: held ones keep theirs only while others can work."""
        plan = self._plan_seated()
        while not plan.chunks and self._saved:
            self._forget_saved(next(reversed(self._saved)))
            plan = self._plan_seated()
        for sequence in [s for s in self._seated if s.slot in plan.preempted]:
            log.info("preempted to make room in the cache", extra={"request_id": sequence.request.id})
            sequence.cached, sequence.state = 0, None
            self._session.rows.clear(sequence.slot)
        return plan

    def _plan_seated(self) -> Plan:
        active = [s for s in self._sequences.values() if s.slot >= 0]
        rows = [Row(s.slot, s.pending, s.cached) for s in active]
        cells = self._cells - sum(self._sequences[name].cached for name in self._saved)
        streams = sum(row.pending == 1 for row in rows)
        target = self._settings.step_ms if streams else self._settings.prefill_step_ms
        budget = min(self._cost.budget(streams, target / 1000), self._chunk)
        return plan_step(rows, cells, budget, len(rows) + self._chunk)

    def _forget_saved(self, request_id: str) -> None:
        log.info("a held request gave its cells back", extra={"request_id": request_id})
        del self._saved[request_id]
        self._sequences[request_id].cached = 0
        self._sequences[request_id].state = None

    def _run(self, plan: Plan) -> None:
        work = [(chunk, self._seated[chunk.slot]) for chunk in plan.chunks]
        streams = [sequence for _, sequence in work if sequence.pending == 1]
        prompts = [(chunk, sequence) for chunk, sequence in work if sequence.pending > 1]
        started = time.monotonic()
        if streams:
            self._feed_streams(streams)
        for chunk, sequence in prompts:
            self._feed_prompt(chunk, sequence)
        self._cost.observe(len(streams), plan.tokens - len(streams), time.monotonic() - started)

    def _feed_streams(self, streams: Sequence[Running]) -> None:
        """One token each, together. A row between them that has no part gets one too: its place is written again."""
        first, last = min(s.slot for s in streams), max(s.slot for s in streams)
        between = self._seated[first : last + 1]
        ids = np.array([[s.tokens[s.cached]] for s in between], np.int64)
        states = any(s.request.kind == "embed" for s in streams)
        fed = self._session.feed(first, ids, [s.cached + 1 for s in between], states)
        rows = [sequence.slot - first for sequence in streams]
        for sequence in streams:  # before an end moves others, with all that they have
            sequence.cached += 1
        for sequence, row in zip(streams, rows, strict=True):
            self._advance(sequence, fed.logits[row], None if fed.states is None else fed.states[row])

    def _feed_prompt(self, chunk: Chunk, sequence: Running) -> None:
        tokens = max(chunk.tokens, 2)  # never one alone, which would round differently
        tokens += sequence.pending - tokens == 1
        end = sequence.cached + tokens
        ids = sequence.tokens[None, sequence.cached : end].astype(np.int64)
        fed = self._session.feed(sequence.slot, ids, [end], sequence.request.kind == "embed")
        sequence.cached = end
        self._advance(sequence, fed.logits[0], None if fed.states is None else fed.states[0])

    def _advance(self, sequence: Running, logits: Floats, states: Floats | None) -> None:
        """Act on what came out."""
        if not sequence.started:
            sequence.started = True
            self._events.append((sequence.request.id, Started()))
        if sequence.request.kind == "embed":
            assert states is not None, "only a graph with hidden states takes embed requests"
            self._embed(sequence, states)
        elif not sequence.pending and sequence.length < len(sequence.request.prompt) + sequence.generated:
            sequence.length += 1
        elif not sequence.pending:
            self._sample(sequence, logits)

    def _sample(self, sequence: Running, logits: Floats) -> None:
        request, matcher, sampler = sequence.request, sequence.matcher, sequence.sampler
        assert sampler is not None
        plain = logits.copy() if matcher and request.logprobs is not None else logits
        if matcher and not matcher.apply(logits):
            self._end(sequence, Failed(unusable(matcher.reason)))
            return
        token = sampler.pick(self._candidates.fill(logits), sequence.generated)
        if token in self._vocabulary.eog:
            self._end(sequence, Finished("stop", len(request.prompt), sequence.generated))
            return
        sequence.tokens[sequence.length] = token
        sequence.length += 1
        sequence.generated += 1
        logprob = None if request.logprobs is None else distribution.logprob(plain, token, request.logprobs)
        self._events.append((request.id, Token(token, self._vocabulary.piece(token), logprob)))
        complete = matcher is not None and not matcher.accept(token)
        if complete or sequence.generated == request.max_tokens:
            end = Finished("stop" if complete else "length", len(request.prompt), sequence.generated)
            self._end(sequence, end)

    def _embed(self, sequence: Running, states: Floats) -> None:
        if self._pooling == "last" or sequence.state is None:
            sequence.state = np.zeros(states.shape[-1], np.float32)
        sequence.state = sequence.state + (states[-1] if self._pooling == "last" else states.sum(axis=0))
        if not sequence.pending:
            self._end(sequence, Embedded(distribution.unit(sequence.state), len(sequence.request.prompt)))

    def _end(self, sequence: Running, event: Event) -> None:
        self._release(sequence)
        self._events.append((sequence.request.id, event))

    def _release(self, sequence: Running) -> None:
        del self._sequences[sequence.request.id]
        self._saved.pop(sequence.request.id, None)
        if sequence.slot >= 0:
            self._unseat(sequence)
        if sequence.sampler:
            sequence.sampler.close()
