"""What one step decodes: the plan of continuous batching, as a value.

Every sequence has `pending` tokens that are not in the KV cache yet. One that streams its answer has exactly one: the
token sampled last. One whose prompt is being read has more. So a step is planned by three rules:

1. Every sequence with one pending token gets it, always: an answer that streams is never held up by a prompt.
2. What is left of the step's token budget goes to prompts, in chunks: a quarter of it to the oldest prompt of the most
   urgent level, the rest to the prompts of that level with the least left to read, so that short ones answer at once,
   then to those below; but a quarter to the oldest that is due, and a sixteenth to the oldest of the least urgent
   level, so that none starves.
3. Cells of the shared KV cache are handed out to what is due, then by level, then oldest first. A prompt is begun only
   when all of it fits. When streams grow into the last cell, the youngest of the least urgent is preempted: it gives
   its cells back and is read again later.

Due is what has had a slot for long and no token (`running`): short requests that follow each other could else keep the
cells that a long one needs for ever.

The budget comes from `StepCost`, which learns what decoding and reading cost on this machine, so that a step stays
near its target time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.generation import LEVELS
from node.settings import Engine

_STANDARD = LEVELS.index("standard")


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence as the planner sees it: `cached` tokens hold cells, `pending` ones need them; `rank` 0 is urgent."""

    slot: int
    pending: int
    cached: int
    rank: int = 0
    due: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` tokens of `slot` to decode in this step; `last` when none are pending after it.

    The last `drafts` of them are not pending but guessed; only a sequence that streams has any.
    """

    slot: int
    tokens: int
    last: bool
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `preempted` slots give their cells back before the chunks run."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds that a step may take: while answers stream, while urgent prompts are read then, and without streams."""

    stream_s: float
    urgent_s: float
    reading_s: float

    @classmethod
    def of(cls, engine: Engine) -> Targets:
        """As set."""
        return cls(engine.step_ms / 1000, engine.urgent_step_ms / 1000, engine.prefill_step_ms / 1000)

    def seconds(self, rows: Sequence[Row]) -> float:
        """For these rows."""
        if not any(row.pending == 1 for row in rows):
            return self.reading_s
        urgent = any(row.pending > 1 and row.rank < _STANDARD for row in rows)
        return max(self.stream_s, self.urgent_s) if urgent else self.stream_s


def plan_step(rows: Sequence[Row], cells: int, budget: int, limit: int, kept: int = 0) -> Plan:
    """Plan one step over `rows`, due ones and lowest ranks first, of equal ones oldest first, in a cache of `cells`.

    `budget` is how many prompt tokens fit the target time, `limit` how many tokens fit one batch. No prompt is begun in
    the last `kept` cells that are free. There is always progress: with any row at all, the plan has a chunk, if every
    row fits the cache alone, and nothing is kept.
    """
    staying, preempted = _make_room(rows, cells)
    streaming = [row for row in staying if row.pending == 1][:limit]
    free = cells - sum(row.cached for row in staying) - len(streaming)
    prompts = _admit([row for row in staying if row.pending > 1], free, kept)
    chunks = [Chunk(row.slot, 1, True) for row in streaming]
    chunks += _share(prompts, min(budget, limit - len(streaming), free))
    if not chunks and any(row.cached for row in staying):
        # All of the cache is held by prompts that are half read: the youngest gives way, then there is room.
        youngest = max(i for i, row in enumerate(staying) if row.cached)
        rest = [row for i, row in enumerate(staying) if i != youngest]
        again = plan_step(rest, cells, budget, limit, kept)
        return Plan(again.chunks, (*preempted, staying[youngest].slot, *again.preempted))
    return Plan(tuple(chunks), tuple(preempted))


def _make_room(rows: Sequence[Row], cells: int) -> tuple[list[Row], list[int]]:
    """Preempt from the young end until every streaming sequence has a cell for its next token."""
    kept = list(rows)
    preempted: list[int] = []
    while sum(row.cached + (row.pending == 1) for row in kept) > cells:
        youngest = max(i for i, row in enumerate(kept) if row.cached or row.pending == 1)
        preempted.append(kept.pop(youngest).slot)
    return kept, preempted


def _admit(prompts: list[Row], free: int, kept: int) -> list[Row]:
    """The prompts that may be read now: those begun, then, oldest first, those that fit whole beside them."""
    room = free - kept - sum(row.pending for row in prompts if row.cached)
    admitted = []
    blocked = False
    for row in prompts:
        if row.cached:
            admitted.append(row)
        elif not blocked and row.pending <= room:
            room -= row.pending
            admitted.append(row)
        else:
            blocked = True  # nobody overtakes the one that waits for cells, or it might wait forever
    return admitted


def _share(prompts: list[Row], budget: int) -> list[Chunk]:
    """Split `budget` tokens over prompts that are given in the order of their rows."""
    if not prompts or budget <= 0:
        return []
    shares = dict.fromkeys((row.slot for row in prompts), 0)
    levels = sorted(prompts, key=lambda row: row.rank)
    low = next(row for row in levels if row.rank == levels[-1].rank)
    for row, part in ((levels[0], 4), (prompts[0], 4 if prompts[0].due else 0), (low, 16)):
        left = budget - sum(shares.values())
        if part and not shares[row.slot]:
            shares[row.slot] = min(row.pending, -(-budget // part), left)
    left = budget - sum(shares.values())
    for row in sorted(prompts, key=lambda row: (row.rank, row.pending)):
        extra = min(row.pending - shares[row.slot], left)
        shares[row.slot] += extra
        left -= extra
    return [Chunk(row.slot, n, n == row.pending) for row in prompts if (n := shares[row.slot])]


class StepCost:
    """Learns what a step costs and turns a target time into a budget of prompt tokens.

    Model: seconds = decode(streams) + prompt_tokens · per_token, all moving averages of what was measured. A prompt
    token beside streams costs another price than one alone: kernels for attention change with the size of the batch
    (on CPUs llama.cpp's tiled one begins at 64 rows and halves the price deep inside a long prompt).

    A single slow step (the machine was busy elsewhere) counts at most double, so that it cannot stop reading.
    """

    SMOOTHING = 0.2
    TILE = 64  # prompt tokens of a step without streams come in multiples of this
    LEAST = 4  # prompt tokens beside streams, however slow the machine: reading must go on

    def __init__(self, per_token: float = 0.002) -> None:
        self._alone = per_token
        self._beside = per_token
        self._decode: dict[int, float] = {}

    def decode(self, streams: int) -> float:
        """Expected seconds of a step that only streams; scaled from the nearest batch size that was measured."""
        if streams == 0:
            return 0.0
        if not self._decode:
            return streams * self._beside
        nearest = min(self._decode, key=lambda n: abs(n - streams))
        return self._decode[nearest] * max(1.0, streams / nearest)

    def per_token(self, streams: int) -> float:
        """Expected seconds of one more prompt token beside `streams` streaming sequences."""
        return self._beside if streams else self._alone

    def budget(self, streams: int, target: float, *, shared: bool = False) -> int:
        """Prompt tokens that fit `target` seconds beside `streams` streaming sequences."""
        tokens = int(self.reading_s(self.decode(streams), target, shared=shared) / self.per_token(streams))
        if streams == 0:
            return max(self.TILE, tokens - tokens % self.TILE)
        return max(self.LEAST, tokens)

    @staticmethod
    def reading_s(decode: float, target: float, *, shared: bool = False) -> float:
        """Seconds of a step that prompts may have beside streams that take `decode`.

        Where streaming alone takes more than half of the target, the step may take twice the streaming time: on slow
        machines prompts would otherwise never be read. Where the cores are `shared` with a prompt that is read aside,
        streaming takes twice as long already, and a quarter more stays below three times the undisturbed pace.
        """
        return max(target, (1.25 if shared else 2.0) * decode) - decode

    def scaled(self, times: float) -> StepCost:
        """A first guess of what all would cost where it takes so many times as long."""
        guess = StepCost()
        guess._alone, guess._beside = self._alone * times, self._beside * times
        guess._decode = {streams: seconds * times for streams, seconds in self._decode.items()}
        return guess

    def observe(self, streams: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        if prompt_tokens == 0:
            known = self._decode.get(streams)
            self._decode[streams] = seconds if known is None else self._blend(known, seconds)
            return
        price = max(seconds - self.decode(streams), 1e-6) / prompt_tokens
        if streams:
            self._beside = self._blend(self._beside, price)
        elif prompt_tokens >= self.TILE:  # a prompt's last few tokens say little about a full chunk
            self._alone = self._blend(self._alone, price)

    def _blend(self, known: float, seen: float) -> float:
        return known + self.SMOOTHING * (min(seen, 2 * known) - known)
