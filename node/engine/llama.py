"""The llama.cpp engine: continuous batching over one unified KV cache.

A step is: plan (`batch`), decode (`context`), sample what got output. A sequence is its tokens, how many of them are in
the cache, and its sampler; nothing else is state, so that a preempted sequence is simply read again. Long prompts that
arrive among streams are read `aside`; what is `warm` of a prompt is not read at all; tokens that are guessed (`draft`)
are checked together with the one that has to be decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from node.engine import distribution, seats
from node.engine.answers import Answers
from node.engine.aside import SideReader
from node.engine.base import EngineLoad, Threads, Warming
from node.engine.batch import Chunk, Plan, Row, StepCost, Targets, plan_step
from node.engine.blocks import BlockStore
from node.engine.context import STATES, CacheFull, Part
from node.engine.decoder import Decoder, closing_on_error
from node.engine.draft import Drafts, without
from node.engine.guide import unusable
from node.engine.model import LoadedModel
from node.engine.running import Running
from node.engine.sampling import Sampler
from node.engine.warm import Warm
from node.errors import EngineFailed
from node.generation import (
    Embedded,
    Event,
    Failed,
    Finished,
    Model,
    ModelInfo,
    Request,
    Started,
    Token,
)
from node.settings import Engine as EngineSettings

log = logging.getLogger(__name__)


class LlamaEngine:
    """See `engine.base.Engine`."""

    def __init__(
        self,
        settings: EngineSettings,
        name: str,
        weights: Path,
        store: BlockStore | None = None,
        answers: Answers | None = None,
    ) -> None:
        self._settings = settings
        self._decoder = Decoder(settings, weights)
        with closing_on_error(self._decoder):
            self._pooling = distribution.pooling(settings.pooling, self._decoder.pooling)
            info = ModelInfo(
                id=name,
                engine="llama",
                created=int(weights.stat().st_mtime),
                context=self._decoder.context_size,
                slots=settings.slots,
                vocabulary_size=self._decoder.vocabulary.size,
                embedding_size=0 if self._pooling == "none" else self._decoder.context.state_size,
                can_chat=self._decoder.chat_template is not None,
                parked=seats.parked(settings.slots),
            )
            self._llama_model = LoadedModel(info, self._decoder.vocabulary, self._decoder.chat_template)
        self.model: Model = self._llama_model
        self._context = self._decoder.context
        self._side = SideReader(self._decoder)
        self.cores: Threads | None = self._side.cores
        store = store if self._decoder.can_be_cut else None
        tiled = settings.flash_attention != "off" and not self._decoder.offloads
        self._prefixes = Warm(self._context, store, lambda: self._cost.per_token(0), tiled=tiled)
        self.warm: Warming | None = self._prefixes if store else None
        self.answers = answers if settings.drafts == "history" else None
        self._drafts = Drafts(
            self.answers,
            self._decoder.vocabulary.eog,
            enabled=settings.drafts != "off" and self._decoder.can_be_cut,
        )
        self._targets = Targets.of(settings)
        self._costs: dict[int, StepCost] = {}  # by how many threads decode
        self._sequences: dict[str, Running] = {}  # oldest first
        self._free = list(range(settings.slots + seats.parked(settings.slots)))
        self._events: list[tuple[str, Event]] = []

    def add(self, request: Request) -> None:
        seats.need_slot(self.load.active, self._settings.slots)
        seats.need_seat(len(self._sequences), self._settings.slots)
        vocabulary = self._decoder.vocabulary
        sampler = Sampler(request, vocabulary) if request.kind == "generate" else None
        matcher = self._llama_model.guide.matcher(request.constraint) if request.constraint else None
        if matcher:
            for token in request.continued:
                matcher.accept(token)
        self._sequences[request.id] = Running(request, self._free.pop(), sampler, matcher, time.monotonic())

    def cancel(self, request_id: str) -> None:
        if sequence := self._sequences.get(request_id):
            self._end(sequence, Finished("cancelled", len(sequence.request.prompt), sequence.generated))

    def hold(self, request_id: str, held: bool) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.held == held:
            return
        if not held:
            seats.need_slot(self.load.active, self._settings.slots)
            sequence.since = time.monotonic()
        sequence.held = held
        self._side.hold(sequence)

    def step(self) -> list[tuple[str, Event]]:
        if self.load.active:
            self._begin()
            plan = self._plan()
            if plan.chunks:
                self._run(plan)
            else:
                self._side.nap()
        events, self._events = self._events, []
        return events

    def fail_all(self) -> list[str]:
        lost = list(self._sequences)
        for sequence in list(self._sequences.values()):
            self._release(sequence, keep=False)
        self._context.forget_all()
        self._events.clear()
        return lost

    @property
    def load(self) -> EngineLoad:
        sequences = self._sequences.values()
        active, used = sum(not s.held for s in sequences), _cells(sequences)
        used -= self._prefixes.shared_cells
        threads, drafts = self._side.cores.threads, self._drafts
        return EngineLoad(len(sequences), active, used, self._context.cells, threads, drafts.proposed, drafts.accepted)

    def close(self) -> None:
        for sequence in list(self._sequences.values()):
            self._release(sequence, keep=False)
        self._side.close()
        self._decoder.close()

    @property
    def _cost(self) -> StepCost:
        threads = self._context.threads
        if threads not in self._costs:
            known = min(self._costs, key=lambda count: abs(count - threads), default=None)
            self._costs[threads] = self._costs[known].scaled(known / threads) if known else StepCost()
        return self._costs[threads]

    @property
    def _cells(self) -> int:
        """All cells, where those that sequences share are counted for each of them."""
        return self._context.cells + self._prefixes.shared_cells

    def _begin(self) -> None:
        """Give new sequences what is warm of them, and what is worth it to be read aside."""
        everyone = self._sequences.values()
        # Held sequences keep their cells only as long as the others can work without them.
        needed = sum(s.length for s in everyone if not s.held)
        while (kept := [s for s in everyone if s.held and s.cached]) and needed + _cells(kept) > self._cells:
            self._preempt([kept[-1].slot])
        active, now = [s for s in everyone if not s.held], time.monotonic()
        for sequence in active:
            sequence.age(now)
        begun = sum(s.length for s in active if s.cached or s.aside)
        self._prefixes.begin(active, self._cells - _cells(kept) - begun)
        for sequence in self._side.tend(active):
            self._start(sequence)

    def _plan(self) -> Plan:
        """The next step, with the cells it needs made free."""
        everyone = self._sequences.values()
        active = [s for s in everyone if not (s.held or s.aside or s.waiting)]
        active.sort(key=lambda sequence: (not sequence.due, sequence.rank))
        rows = [Row(s.slot, s.pending, s.cached, s.rank, s.due) for s in active]
        cells = self._cells - _cells(s for s in everyone if s.held or s.aside)
        streams = sum(row.pending == 1 for row in rows)
        budget = self._cost.budget(streams, self._targets.seconds(rows), shared=self._side.cores.shared)
        limit = self._context.batch
        if any(s.request.kind == "embed" for s in active):
            budget, limit = min(budget, STATES), min(limit, len(rows) + STATES)
        plan = plan_step(rows, cells, budget, limit, self._side.kept)
        self._preempt(plan.preempted)
        room = min(self._cells - _cells(everyone), self._context.batch) - plan.tokens
        return self._drafts.add(plan, {s.slot: s for s in active}, room, self._settings.step_ms / 1000)

    def _preempt(self, slots: Sequence[int]) -> None:
        for sequence in self._sequences.values():
            if sequence.slot in slots:
                log.info("preempted to make room in the cache", extra={"request_id": sequence.request.id})
                self._side.drop(sequence)  # what is read aside goes on after cells that are given up here
                self._prefixes.leave(sequence)
                sequence.state = None

    def _run(self, plan: Plan) -> None:
        """Decode the plan; where the cache disagrees with our count of its cells, the youngest gives way."""
        by_slot = {sequence.slot: sequence for sequence in self._sequences.values()}
        work = [(chunk, by_slot[chunk.slot]) for chunk in plan.chunks]
        states = any(sequence.request.kind == "embed" for _, sequence in work)
        started = time.monotonic()
        try:
            self._context.decode([_part(chunk, sequence) for chunk, sequence in work], states=states)
        except CacheFull:
            if (plain := without(plan)) != plan:
                self._run(plain)
            else:
                self._yield_cells()
            return
        streams = sum(sequence.pending == 1 for _, sequence in work)
        index = -1
        for chunk, sequence in work:
            index += chunk.tokens
            self._advance(chunk, sequence, index)
        if not states:
            self._observe(streams, plan, started)

    def _observe(self, streams: int, plan: Plan, started: float) -> None:
        """Learn from a step that took until now."""
        now, drafts = time.monotonic(), sum(chunk.drafts for chunk in plan.chunks)
        prompt_tokens = plan.tokens - streams - drafts
        if not drafts:
            self._cost.observe(streams, prompt_tokens, now - started)
        if streams and not prompt_tokens:
            self._drafts.observe(plan.tokens, now - started)
        if streams or prompt_tokens >= StepCost.TILE:
            self._side.cores.observe(streams + drafts, prompt_tokens, now - started, now)

    def _yield_cells(self) -> None:
        holding = [sequence for sequence in self._sequences.values() if sequence.cached]
        kept = [sequence for sequence in holding if sequence.held]
        if kept or len(holding) > 1:
            self._preempt([(kept or holding)[-1].slot])
        else:
            oldest = next(sequence for sequence in self._sequences.values() if not sequence.held)
            self._end(oldest, Failed(EngineFailed("The KV cache has no room for this request.")))

    def _advance(self, chunk: Chunk, sequence: Running, index: int) -> None:
        """Account for what was decoded and act on its output, which stands at batch position `index`."""
        request = sequence.request
        self._start(sequence)
        sequence.cached += chunk.tokens - chunk.drafts
        if request.kind == "embed":
            self._embed(chunk, sequence, index)
        elif chunk.last:
            self._answer(chunk, sequence, index)

    def _start(self, sequence: Running) -> None:
        if not sequence.started:
            sequence.started = True
            cached = min(sequence.warm, len(sequence.request.prompt))
            self._events.append((sequence.request.id, Started(cached)))

    def _answer(self, chunk: Chunk, sequence: Running, index: int) -> None:
        """Draw the next token, and one more for each draft that was right."""
        drafted = sequence.tokens[sequence.length : sequence.length + chunk.drafts].tolist()
        right, at = 0, index - chunk.drafts
        while goes_on := self._sample(sequence, at + right):
            if right == chunk.drafts or sequence.tokens[sequence.length - 1] != drafted[right]:
                break
            sequence.cached += 1
            right += 1
        self._drafts.checked(chunk.drafts, right)
        if goes_on and right < chunk.drafts:
            self._context.trim(sequence.slot, sequence.cached)

    def _sample(self, sequence: Running, index: int) -> bool:
        """Draw one token from the logits at batch position `index`; False when it was the last."""
        request, vocabulary = sequence.request, self._decoder.vocabulary
        logits = self._context.logits(index) if sequence.matcher or request.logprobs is not None else None
        plain = None if logits is None or request.logprobs is None else logits.copy()
        if sequence.matcher and logits is not None and not sequence.matcher.apply(logits):
            self._end(sequence, Failed(unusable(sequence.matcher.reason)))
            return False
        assert sequence.sampler is not None
        token = sequence.sampler.sample(self._context.handle, index, sequence.generated)
        if token in vocabulary.eog:
            self._end(sequence, Finished("stop", len(request.prompt), sequence.generated))
            return False
        sequence.tokens[sequence.length] = token
        sequence.length += 1
        sequence.generated += 1
        logprob = None if plain is None else distribution.logprob(plain, token, request.logprobs or 0)
        self._events.append((request.id, Token(token, vocabulary.piece(token), logprob)))
        complete = sequence.matcher is not None and not sequence.matcher.accept(token)
        if complete or sequence.generated == request.max_tokens:
            end = Finished("stop" if complete else "length", len(request.prompt), sequence.generated)
            self._end(sequence, end)
            return False
        self._drafts.saw(sequence)
        return True

    def _embed(self, chunk: Chunk, sequence: Running, index: int) -> None:
        first = index if self._pooling == "last" else index - chunk.tokens + 1
        for position in range(first, index + 1):
            state = self._context.state(position)
            mean = self._pooling == "mean" and sequence.state is not None
            sequence.state = sequence.state + state if mean and sequence.state is not None else state
        if chunk.last and sequence.state is not None:
            self._end(sequence, Embedded(distribution.unit(sequence.state), len(sequence.request.prompt)))

    def _end(self, sequence: Running, event: Event) -> None:
        if isinstance(event, Finished):
            self._drafts.ended(sequence)
        self._release(sequence)
        self._events.append((sequence.request.id, event))

    def _release(self, sequence: Running, *, keep: bool = True) -> None:
        del self._sequences[sequence.request.id]
        self._side.drop(sequence)
        self._prefixes.leave(sequence, keep=keep)
        self._free.append(sequence.slot)
        if sequence.sampler:
            sequence.sampler.close()


def _cells(sequences: Iterable[Running]) -> int:
    return sum(sequence.cached for sequence in sequences)


def _part(chunk: Chunk, sequence: Running) -> Part:
    ids = sequence.tokens[sequence.cached : sequence.cached + chunk.tokens]
    return Part(sequence.slot, sequence.cached, ids, 1 + chunk.drafts if chunk.last else 0)
