"""What a load test comes to: who got what was promised, and how many tokens came in time. Pure.

A request's objective for its first text is its level's longest wait plus `READING` times what reading its prompt costs
on an idle node (that much a prompt may be slowed down by the answers that stream beside it); later tokens follow it at
`gap_s`. A token that comes by then is delivered within the objective, also when the ones before it were late, but only
in an answer that came whole; their number a second is the goodput. Background has no objective: all of a whole answer
counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.admission.score import CLASSES
from node.bench.figures import gaps, percentile
from node.bench.load import Alone, Ending, Outcome
from node.bench.report import Figure
from node.generation import LEVELS, Level

READING = 2.0
_KEPT_PROBLEMS = 3


@dataclass(frozen=True, slots=True)
class Objective:
    """What was promised to whom: `alone` is what reading costs an idle node, `gap_s` the seconds between tokens."""

    alone: Alone
    gap_s: float

    def ttft_s(self, outcome: Outcome) -> float | None:
        """Seconds by which the first text must be there; None where nothing is promised."""
        wait_s = CLASSES[outcome.ask.level].max_wait_s
        return None if wait_s is None else wait_s + READING * self.alone.ttft_s(outcome.ask.prompt_tokens)

    def excess_s(self, outcome: Outcome) -> float | None:
        """How far the first text missed its objective, negative where it came before; None without either."""
        promised, seen = self.ttft_s(outcome), outcome.ttft_s
        return None if promised is None or seen is None else seen - promised

    def attained(self, outcome: Outcome) -> bool:
        """Whether the answer came whole, its first text in time and the others at the promised pace."""
        if outcome.ending != "whole" or (promised := self.ttft_s(outcome)) is None:
            return outcome.ending == "whole"
        return (outcome.ttft_s or 0.0) <= promised and outcome.gap_s <= self.gap_s

    def good_tokens(self, outcome: Outcome) -> float:
        """How many tokens came within the objective."""
        arrivals = outcome.arrivals
        if outcome.ending != "whole":
            return 0.0
        if (promised := self.ttft_s(outcome)) is None:
            return len(arrivals.times) * arrivals.tokens_per_piece
        due = outcome.due + promised
        in_time = sum(at <= due + number * self.gap_s for number, at in enumerate(arrivals.times))
        return in_time * arrivals.tokens_per_piece


@dataclass(frozen=True, slots=True)
class Run:
    """One turn of one setting: what became of its requests, in so many seconds of arrivals."""

    outcomes: Sequence[Outcome]
    seconds: float

    def of(self, level: Level) -> list[Outcome]:
        """The requests of one level."""
        return [one for one in self.outcomes if one.ask.level == level]


def goodput(run: Run, objective: Objective) -> float:
    """Tokens a second that came within their objective, over the time from the first request to the last token."""
    return sum(map(objective.good_tokens, run.outcomes)) / _span(run)


def throughput(run: Run) -> float:
    """Tokens a second, whenever they came."""
    return sum(len(one.arrivals.times) * one.arrivals.tokens_per_piece for one in run.outcomes) / _span(run)


def attainment(outcomes: Sequence[Outcome], objective: Objective) -> float:
    """The share of requests that got what was promised; refused ones did not. NaN of none."""
    return sum(map(objective.attained, outcomes)) / len(outcomes) if outcomes else float("nan")


def ttft(outcomes: Sequence[Outcome], share: float) -> float:
    """A percentile of the times to first text, in seconds; NaN where no text came."""
    seen = [one.ttft_s for one in outcomes if one.ttft_s is not None]
    return percentile(seen, share) if seen else float("nan")


def gap(outcomes: Sequence[Outcome], share: float) -> float:
    """A percentile of the gaps between pieces, in seconds; NaN where there are none."""
    seen = [each for one in outcomes for each in gaps(one.arrivals.times)]
    return percentile(seen, share) if seen else float("nan")


def level_figures(name: str, runs: Sequence[Run], objective: Objective) -> list[Figure]:
    """One line a level and one for all: attainment, and how it came about."""
    lines = []
    for level in LEVELS:
        outcomes = [one for run in runs for one in run.of(level)]
        if outcomes:
            share = attainment(outcomes, objective)
            lines.append(Figure(f"{name}: {level} SLO attainment", share, detail=_told(outcomes)))
    good, all_tokens = (sum(rates) / len(runs) for rates in zip(*(_rates(run, objective) for run in runs), strict=True))
    lines.append(Figure(f"{name}: goodput", good, "tokens/s", detail=f"of {all_tokens:.1f} tokens/s in all"))
    return lines


def problems(runs: Sequence[Run]) -> Figure:
    """Requests without an end, or with one that no client should see."""
    bad = [one for run in runs for one in run.outcomes if one.ending in ("hung", "failed")]
    some = "; ".join(sorted({one.why or "no end" for one in bad})[:_KEPT_PROBLEMS])
    return Figure("requests that hung or failed", len(bad), "requests", at_most=0, detail=some)


def longest_held_s(runs: Sequence[Run], objective: Objective) -> float:
    """About the longest time that a request held its slot: reading its prompt beside others, then its tokens."""
    held = (
        READING * objective.alone.ttft_s(one.ask.prompt_tokens) + one.arrivals.times[-1] - one.arrivals.times[0]
        for run in runs
        for one in run.outcomes
        if one.arrivals.times
    )
    return max(held, default=0.0)


def most_at_once(runs: Sequence[Run]) -> int:
    """The most requests of a turn that were in the node together, those that it refused left out."""
    most = 0
    for run in runs:
        answered = [one for one in run.outcomes if one.arrivals.times]
        moves = [(one.due, 1) for one in answered] + [(one.arrivals.times[-1], -1) for one in answered]
        count = 0
        for _, change in sorted(moves):
            count += change
            most = max(most, count)
    return most


def _rates(run: Run, objective: Objective) -> tuple[float, float]:
    return goodput(run, objective), throughput(run)


def _span(run: Run) -> float:
    begin = min((one.due for one in run.outcomes), default=0.0)
    end = max((one.arrivals.times[-1] for one in run.outcomes if one.arrivals.times), default=begin)
    return max(run.seconds, end - begin)


def _told(outcomes: Sequence[Outcome]) -> str:
    counts: Mapping[Ending, int] = Counter(one.ending for one in outcomes)
    ends = ", ".join(f"{counts[ending]} {ending}" for ending in ("whole", "refused", "expired", "failed", "hung"))
    first = " / ".join(f"{ttft(outcomes, share) * 1000:.0f}" for share in (0.5, 0.95))
    later = " / ".join(f"{gap(outcomes, share) * 1000:.0f}" for share in (0.5, 0.99))
    return f"{len(outcomes)} asked: {ends}; TTFT p50 / p95 {first} ms, gaps p50 / p99 {later} ms"
