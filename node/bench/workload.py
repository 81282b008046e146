"""What a load test asks, and when: open-loop arrivals that do not wait for answers, as a list made beforehand.

Arrivals are drawn (a Poisson process, answers and prompts of log-normal length) or come from a trace of a real service:
a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens, as Azure publishes them, whose times are
scaled to the wanted rate and whose lengths are scaled to what a small machine can do. Texts are everyday questions,
or lines of a file; each prompt is padded in front with real words, so that no two begin alike.
"""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.bench.prompts import QUESTIONS, words
from node.errors import OperatorError
from node.generation import Level

MOST_FILE_BYTES = 16 << 20
LEAST_PROMPT, LEAST_ANSWER = 16, 4  # tokens
_TOKENS_PER_WORD = 1.2
_SPREAD = 0.7  # of the logarithm of drawn lengths: the longest twentieth is three times the median

DEFAULT_MIX: Mapping[Level, float] = {"critical": 10, "interactive": 25, "standard": 30, "background": 35}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when it is sent (seconds after the start), how urgent it is and how long it and its answer are."""

    at: float
    level: Level
    prompt_tokens: int
    answer_tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """One row of a trace: seconds since its first row, and two lengths in tokens."""

    at: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Mixture:
    """Who asks what. `lengths` multiplies the trace's; without a trace the medians count."""

    mix: Mapping[Level, float]
    texts: Sequence[str] = QUESTIONS
    lengths: float = 1.0
    prompt_tokens: int = 160
    answer_tokens: int = 40
    longest: int = 2048

    def draw(self, at: float, row: Arrival | None, chance: random.Random) -> Ask:
        """A request at `at`, as long as `row` says, or of drawn length."""
        (level,) = chance.choices(list(self.mix), list(self.mix.values()))
        if row is None:
            prompt, answer = self._spread(self.prompt_tokens, chance), self._spread(self.answer_tokens, chance)
        else:
            prompt, answer = round(row.prompt_tokens * self.lengths), round(row.answer_tokens * self.lengths)
        prompt = min(self.longest, max(LEAST_PROMPT, prompt))
        text = _padded(chance.choice(self.texts), prompt, chance.randrange(1 << 31))
        return Ask(at, level, prompt, min(self.longest, max(LEAST_ANSWER, answer)), text)

    def _spread(self, median: int, chance: random.Random) -> int:
        return round(median * math.exp(chance.gauss(0, _SPREAD)))


@dataclass(frozen=True, slots=True)
class Pace:
    """How many requests come a second; in the middle third `surge` times as many."""

    rate: float
    seconds: float
    surge: float = 1.0

    @property
    def expected(self) -> float:
        """How many come in all."""
        return self.rate * self.seconds * (2 + self.surge) / 3

    def at(self, count: float) -> float:
        """When the request comes that has `count` before it: the inverse of how many came until then."""
        third = self.rate * self.seconds / 3
        before, within = min(count, third), min(max(0.0, count - third), third * self.surge)
        return (before + within / self.surge + max(0.0, count - third - within)) / self.rate


def poisson(mixture: Mixture, pace: Pace, seed: int) -> list[Ask]:
    """Requests that come independently of each other."""
    chance = random.Random(seed)
    return [mixture.draw(pace.at(count), None, chance) for count in _until(pace.expected, _exponential(chance))]


def traced(rows: Sequence[Arrival], mixture: Mixture, pace: Pace, seed: int) -> list[Ask]:
    """The trace's requests in its own rhythm, from a place in it that the seed chooses, at the wanted rate."""
    chance = random.Random(seed)
    start = chance.randrange(max(1, len(rows) - math.ceil(pace.expected)))
    taken = rows[start:]
    density = (len(rows) - 1) / (rows[-1].at - rows[0].at)
    counts = ((row.at - taken[0].at) * density for row in taken)
    placed = zip(counts, taken, strict=True)
    return [mixture.draw(pace.at(count), row, chance) for count, row in placed if count < pace.expected]


def read_trace(path: Path) -> list[Arrival]:
    """The rows of a CSV file with the columns TIMESTAMP, ContextTokens, GeneratedTokens; raises OperatorError."""
    try:
        lines = list(csv.DictReader(_text(path).splitlines()))
        times = [datetime.datetime.fromisoformat(line["TIMESTAMP"] + "+00:00").timestamp() for line in lines]
        lengths = [(int(line["ContextTokens"]), int(line["GeneratedTokens"])) for line in lines]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise OperatorError(
            f"{path} is not a trace of arrivals ({error}).", hint="Columns: TIMESTAMP, ContextTokens, GeneratedTokens."
        ) from error
    rows = [Arrival(at - times[0], *both) for at, both in zip(times, lengths, strict=True)]
    if len(rows) < 2 or any(b.at < a.at for a, b in itertools.pairwise(rows)) or rows[-1].at <= 0:
        raise OperatorError(f"{path} needs at least two arrivals, in the order of their times.")
    return rows


def read_texts(path: Path) -> list[str]:
    """Questions: a line each, the column `utterance` of a .tsv file, or the last message of each line of a .jsonl."""
    lines = _text(path).splitlines()
    try:
        if path.suffix == ".tsv":
            found: Iterable[str] = (row["utterance"] for row in csv.DictReader(lines, delimiter="\t"))
        elif path.suffix == ".jsonl":
            found = (json.loads(line)["messages"][-1]["content"] for line in lines)
        else:
            found = lines
        texts = [text.strip() for text in found if text.strip()]
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise OperatorError(f"{path} does not hold questions in the form that its name says ({error}).") from error
    if not texts:
        raise OperatorError(f"{path} holds no questions.")
    return texts


def read_mix(text: str) -> dict[Level, float]:
    """Shares of the levels, as in "critical=1,interactive=3"; raises ValueError."""
    shares = dict.fromkeys(DEFAULT_MIX, 0.0)
    for part in text.split(","):
        name, _, share = part.partition("=")
        known = next((level for level in shares if level == name.strip()), None)
        if known is None or not 0 <= float(share) < 1e6:
            raise ValueError(text)
        shares[known] = float(share)
    if not any(shares.values()):
        raise ValueError(text)
    return shares


def _padded(question: str, tokens: int, seed: int) -> str:
    """The question after so many real words that it is about `tokens` tokens long."""
    missing = tokens / _TOKENS_PER_WORD - len(question.split())
    return f"{words(round(missing), seed)}. {question}" if missing >= 1 else question


def _exponential(chance: random.Random) -> Iterator[float]:
    while True:
        yield chance.expovariate(1.0)


def _until(end: float, steps: Iterator[float]) -> Iterator[float]:
    """The running sums of `steps` that are below `end`."""
    total = 0.0
    for step in steps:
        total += step
        if total >= end:
            return
        yield total


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise OperatorError(f"{path} has more than {MOST_FILE_BYTES >> 20} MiB.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"Cannot read {path}: {error}.") from error
