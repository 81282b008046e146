"""What drafts are worth: the same questions, on a node that drafts and on one that does not, in turns.

Every question is asked three times, at temperature 0 and at 0.7 with a seed of its own: the first time both nodes know
nothing, the second and third time one of them can guess. Then everyday questions are asked once, at 0.7, for texts that
repeat nothing. Rates are those of one stream from the request to its end: what a reader waits for, and the first piece
of a draft's text may hold many tokens. What is compared is the median over questions of one node's rate over the
other's, for answers that are the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from node.bench.prompts import question
from node.bench.report import Figure
from node.client import Client, Done, TextDelta
from node.errors import EngineFailed

AGAIN = 1.3
NEVER_BELOW = 0.97
SAMPLED_ALIKE = 0.9
ASKINGS = 3
HOT = 0.7
_LEAST = 8  # tokens of an answer whose rate says anything

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: repeated questions with their answers' longest, and texts without repetition."""

    questions: int = 100
    tokens: int = 32
    fresh: int = 24
    fresh_tokens: int = 96


QUICK = Plan(questions=10, fresh=6)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its text, how many tokens, and the seconds from the request to its end."""

    text: str
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second, with the time that its prompt took."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class Pairs:
    """Answers to the same questions, without and with drafts."""

    plain: list[Answer] = field(default_factory=list)
    drafted: list[Answer] = field(default_factory=list)

    @property
    def alike(self) -> float:
        """The share of answers that have the same text."""
        return statistics.fmean(one.text == other.text for one, other in zip(self.plain, self.drafted, strict=True))

    @property
    def ratios(self) -> list[float]:
        """How many times as fast the drafting node was, for each answer that is the same and long enough."""
        pairs = zip(self.plain, self.drafted, strict=True)
        return [other.rate / one.rate for one, other in pairs if one.text == other.text and one.tokens >= _LEAST]


@dataclass(slots=True)
class Asked:
    """All answers of one temperature, by asking."""

    askings: tuple[Pairs, ...] = field(default_factory=lambda: tuple(Pairs() for _ in range(ASKINGS)))


class Drafting:
    """The run; its answers fill up as it goes on."""

    def __init__(self, plain: Client, drafting: Client, texts: Sequence[str], plan: Plan, tell: Tell) -> None:
        self._plain, self._drafting = plain, drafting
        self._texts = [texts[number % len(texts)] for number in range(plan.questions)]
        self._plan, self._tell = plan, tell
        self.greedy, self.sampled, self.fresh = Asked(), Asked(), Pairs()

    @property
    def runs(self) -> int:
        """How often `tell` is called."""
        return 2 * ASKINGS + 1

    async def run(self) -> None:
        """Warm both nodes up, then measure."""
        for client in (self._plain, self._drafting):
            await _ask(client, "Hello", 16, 0.0, 0)
        for asked, temperature in ((self.greedy, 0.0), (self.sampled, HOT)):
            for number, pairs in enumerate(asked.askings):
                self._tell(
                    f"{len(self._texts)} questions, asked for the {number + 1}. time, temperature {temperature:g}"
                )
                await self._both(pairs, self._texts, self._plan.tokens, temperature)
        self._tell(f"{self._plan.fresh} texts without repetition")
        fresh = [question(number) for number in range(self._plan.fresh)]
        await self._both(self.fresh, fresh, self._plan.fresh_tokens, HOT)

    async def _both(self, pairs: Pairs, texts: Sequence[str], tokens: int, temperature: float) -> None:
        for number, text in enumerate(texts):
            turns = [(self._plain, pairs.plain), (self._drafting, pairs.drafted)]
            for client, answers in turns if number % 2 else reversed(turns):
                answers.append(await _ask(client, text, tokens, temperature, number))


async def _ask(client: Client, text: str, tokens: int, temperature: float, seed: int) -> Answer:
    said, asked = "", time.perf_counter()
    messages = [{"role": "user", "content": text}]
    events = client.chat(messages, max_tokens=tokens, temperature=temperature, seed=seed)
    async with aclosing(events) as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                said += event.text
            elif isinstance(event, Done):
                count = event.usage.completion_tokens if event.usage else 0
                return Answer(said, count, time.perf_counter() - asked)
    raise EngineFailed("A stream ended without its end.")


def figures(run: Drafting) -> list[Figure]:
    """All promises, and what they are made of."""
    return [
        *_again("greedy", run.greedy),
        *_again(f"temperature {HOT:g}", run.sampled),
        _faster("texts without repetition, with drafts / without", run.fresh.ratios, NEVER_BELOW),
        _alike("greedy answers that are the same", run.greedy, 1.0),
        _alike(f"answers at {HOT:g} that are the same", run.sampled, SAMPLED_ALIKE),
    ]


def _again(name: str, asked: Asked) -> list[Figure]:
    first, *later = asked.askings
    return [
        _faster(f"first asking, {name}, with drafts / without", first.ratios, None),
        _faster(f"asked again, {name}, with drafts / without", [r for pairs in later for r in pairs.ratios], AGAIN),
    ]


def _faster(name: str, ratios: Sequence[float], at_least: float | None) -> Figure:
    middle = statistics.median(ratios) if ratios else float("nan")
    low, high = (sorted(ratios)[int(share * (len(ratios) - 1))] for share in (0.1, 0.9)) if ratios else (0.0, 0.0)
    return Figure(name, middle, at_least=at_least, detail=f"{len(ratios)} answers, nine of ten {low:.2f} to {high:.2f}")


def _alike(name: str, asked: Asked, at_least: float) -> Figure:
    shares = [pairs.alike for pairs in asked.askings]
    told = ", ".join(f"{share:.3f}" for share in shares)
    return Figure(name, statistics.fmean(shares), at_least=at_least, detail=f"by asking {told}")
