"""The search: try variants in pairs with the best so far, keep what is better and passes the gate, confirm the winner.

1. Forms of the weights, each in turns with the file as shipped. Speed is looked at first, because it is cheap: only
   what beats the best so far goes to the gate.
2. One engine setting after the other, in turns with the best so far. Where it changes what the model says, the gate
   sees the whole combination.
3. The finalists run against the file as shipped again, all in turns, in more rounds, and only these figures count. They
   are the best form by itself and the best of all: where a setting only seemed to help, the form still wins. If a
   finalist is under the least gain, or any of its figures is a loss, it does not win; if none does, the report says so.

The order changes from round to round: whatever else the machine does, hits all sides. The time is bounded: a slow
machine gets fewer rounds, whose figures are taken over longer, and what no time was left for is in the report as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from node.errors import NodeError, OperatorError
from node.settings import Engine
from node.tuning.gate import Quality
from node.tuning.variants import (
    AS_SHIPPED,
    FLOOR,
    NOISE,
    ONNX,
    OTHER_ENGINE,
    Speed,
    Variant,
    changed,
    forms,
    median,
    ratio,
    steps,
)

Verdict = Literal["shipped", "best", "better", "slower", "refused", "failed", "skipped"]
Tell = Callable[[str, int, int], None]  # what is being done, trials done, trials in all as far as is known
_STEPS = 6  # settings that are likely to be tried; only the progress bar asks


class Bench(Protocol):
    """What variants are made and measured with; `Lab` is the real one. All raise NodeError."""

    def make(self, form: str) -> int:
        """Have the weights in this form; gives the file's bytes."""

    def drop(self, form: str) -> None:
        """The form is not needed any more."""

    def speed(self, variant: Variant) -> Speed:
        """Measure it once."""

    def quality(self, variant: Variant) -> Quality:
        """Compare what it says with the file as shipped."""


@dataclass(frozen=True, slots=True)
class Space:
    """What the model and the machine allow: see `variants.forms` and `variants.steps`."""

    base: Engine
    shipped: str
    parameters: int
    bytes: int
    room: int | None
    cores: int
    threads: int
    fixed: frozenset[str] = frozenset()
    onnx_bytes: int = 0  # of the folder for the other engine; 0 where there is none, or none may be served


@dataclass(frozen=True, slots=True)
class Limits:
    """When a variant may win, and how long to look; `plans` are rounds of a trial and of the last run, best first."""

    max_kl: float
    min_agreement: float
    min_gain: float
    budget_s: float
    plans: Sequence[tuple[int, int]] = ((2, 5), (1, 3), (1, 1))


@dataclass(slots=True)
class Row:
    """One variant in the report. Ratios are over the file as shipped."""

    variant: Variant
    verdict: Verdict
    why: str = ""
    ratio: Speed | None = None
    quality: Quality | None = None
    bytes: int = 0


@dataclass(slots=True)
class Report:
    """What came out. `winner` is confirmed, else `why` says why there is none; speeds are tokens/s in the last run."""

    rows: list[Row] = field(default_factory=list)
    winner: Row | None = None
    why: str = ""
    shipped_speed: Speed | None = None
    winner_speed: Speed | None = None
    rounds: int = 0
    seconds: float = 0.0


class _NoTime(Exception):
    """The next measurement would not end within the budget."""


class Tuner:
    """One run over a space. Time is looked at before every measurement: a machine may become busy at any of them."""

    def __init__(
        self, space: Space, limits: Limits, bench: Bench, tell: Tell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._space, self._limits, self._bench, self._tell = space, limits, bench, tell
        self._clock, self._began = clock, clock()
        self._turns = 0
        self._turning_s = self._turn_s = 0.0  # all, and the last one
        self._make_s = 0.0  # what the slowest form took to make
        self._gate_s = 0.0  # what the gate took when it was last asked
        self._shipped = Variant(AS_SHIPPED, space.base)
        self._qualities = {_arithmetic(self._shipped): Quality(0.0, 1.0, 0)}  # compared with itself, at no place
        self._best = Row(self._shipped, "shipped", ratio=Speed(1, 1, 1), bytes=space.bytes)
        self._report = Report([self._best])
        self._forms = forms(space.shipped, space.parameters, space.room)
        self._planned = len(self._forms) + _STEPS

    def run(self) -> Report:
        """Search, confirm, report. Raises NodeError where the file as shipped cannot be run, or not often enough."""
        self._say(self._shipped, "measuring")
        self._first = self._turn(self._shipped)
        self._plan()
        self._try_forms()
        self._best_form = self._best
        self._try_settings()
        if all(row.verdict in ("shipped", "skipped") for row in self._report.rows):
            raise self._too_slow_to_try()
        self._confirm()
        self._report.seconds = self._clock() - self._began
        return self._report

    def _plan(self) -> None:
        """The most thorough plan that leaves time for all forms, else the least."""
        for plan in self._limits.plans:
            self._pairs, self._rounds = plan
            if self._has_time_for(2 * self._pairs * len(self._forms), 2):
                break

    def _too_slow_to_try(self) -> OperatorError:
        reasons = {row.why for row in self._report.rows if row.why}
        return OperatorError(
            f"No variant could be tried: {', '.join(sorted(reasons))}. "
            f"One measurement takes {self._turning_s / self._turns:.0f} s, of {self._limits.budget_s:g} s in all.",
            hint="Stop what else runs on this machine, or raise tune.budget_s.",
        )

    def _try_forms(self) -> None:
        space = self._space
        for form, obstacle in self._forms.items():
            variant = Variant(form, space.base)
            if obstacle:
                self._report.rows.append(Row(variant, "skipped", obstacle))
                continue
            before = self._best.variant.form
            self._try(variant, self._shipped, Speed(1, 1, 1))
            self._bench.drop(before if self._best.variant.form == form else form)

        if space.onnx_bytes:
            before = self._best.variant.form
            self._try(changed(Variant(ONNX, space.base), "kind", "onnx"), self._shipped, Speed(1, 1, 1))
            if self._best.variant.form == ONNX:
                self._bench.drop(before)

    def _try_settings(self) -> None:
        """What is a gain stays; the next setting is tried on top of it."""
        tried: set[str] = set()
        while left := [step for step in self._steps() if step[0] not in tried]:
            key, values = left[0]
            tried.add(key)
            for value in values:
                best = self._best
                self._try(changed(best.variant, key, value), best.variant, best.ratio or Speed(1, 1, 1))

    def _steps(self) -> list[tuple[str, list[int | str]]]:
        space, speed = self._space, self._first.times(self._best.ratio or Speed(1, 1, 1))
        return steps(self._best.variant.engine, space.cores, space.threads, speed, space.fixed)

    def _try(self, variant: Variant, rival: Variant, scale: Speed) -> None:
        """Measure against a rival, whose own ratio is `scale`; what is better and good enough is the best."""
        row = Row(variant, "skipped", "no time was left")
        self._report.rows.append(row)
        gate_s = 0.0 if _arithmetic(variant) in self._qualities else self._gate_s
        runners = 2 if rival == self._shipped else 3
        if not self._has_time_for(2 * self._pairs, runners, gate_s + self._make_s):
            return
        try:
            row.bytes = self._make(variant.form) if variant.form else self._space.bytes
            self._say(variant, "measuring")
            after = runners * self._limits.plans[-1][1]
            row.ratio = ratio(*self._take_turns([rival, variant], self._pairs, after, gate_s)).times(scale)
            self._judge(row)
        except _NoTime:
            row.verdict, row.why = "skipped", "no time was left to measure it to the end"
        except NodeError as error:
            row.verdict, row.why = "failed", error.message

    def _make(self, form: str) -> int:
        began = self._clock()
        size = self._bench.make(form)
        self._make_s = max(self._make_s, self._clock() - began)
        return size

    def _judge(self, row: Row) -> None:
        row.verdict, row.why = "slower", self._too_slow(row.ratio or Speed(0, 0, 0), row.variant)
        if row.why:
            return
        row.quality = self._quality(row.variant)
        row.verdict, row.why = "refused", row.quality.refusal(self._limits.max_kl, self._limits.min_agreement)
        if row.why:
            return
        if self._best.verdict == "best":
            self._best.verdict, self._best.why = "better", f"{row.variant.label(self._space.base)} is better still"
        row.verdict, self._best = "best", row

    def _too_slow(self, found: Speed, variant: Variant) -> str:
        """Why it cannot be the best, by its ratios over the shipped file; "" where it can."""
        if found.least < FLOOR:
            return f"{found.worst} at {found.least:.2f} x is a loss"
        best = self._best.ratio or Speed(1, 1, 1)
        same = variant.engine.kind == self._best.variant.engine.kind
        if found.score < best.score * (1 + (NOISE if same else OTHER_ENGINE)):
            enough = "" if same else " by enough for another engine"
            return f"score {found.score:.2f} does not beat {best.score:.2f}{enough}"
        return ""

    def _quality(self, variant: Variant) -> Quality:
        """Threads and batches leave the words alone: the same arithmetic is judged once."""
        key = _arithmetic(variant)
        if key not in self._qualities:
            self._say(variant, "comparing what it says")
            began = self._clock()
            self._qualities[key] = self._bench.quality(variant)
            self._gate_s = self._clock() - began
        return self._qualities[key]

    def _confirm(self) -> None:
        """The last run: finalists against the file as shipped."""
        report = self._report
        finalists = [row for row in (self._best, self._best_form) if row.variant != self._shipped]
        if not finalists:
            report.why = "No variant was faster within the quality limits."
            return
        if finalists[0] is finalists[-1]:
            finalists = finalists[:1]
        self._say(self._best.variant, "the last run")
        for plan in self._limits.plans:  # the gate may have taken longer than was thought
            self._rounds = plan[1]
            if self._has_time_for(0, 1 + len(finalists)):
                break
        shipped, *speeds = self._last_run([self._shipped, *(row.variant for row in finalists)])
        if not shipped:
            report.why = "No time was left for the last run."
            return
        for row, own in zip(finalists, speeds, strict=True):
            row.ratio = ratio(shipped, own)
            row.verdict, row.why = "slower", self._too_little(row.ratio)
        good = [(row, own) for row, own in zip(finalists, speeds, strict=True) if not row.why]
        if not good:
            label = finalists[0].variant.label(self._space.base)
            report.why = f"{label} was not confirmed: {finalists[0].why}."
            return
        report.winner, own = max(good, key=lambda pair: pair[0].ratio.score if pair[0].ratio else 0.0)
        report.shipped_speed, report.winner_speed, report.rounds = median(shipped), median(own), len(own)
        for row, _ in good:
            row.verdict, row.why = "better", f"{report.winner.variant.label(self._space.base)} is better still"
        report.winner.verdict, report.winner.why = "best", ""

    def _too_little(self, found: Speed) -> str:
        """Why a finalist does not win; "" where it may."""
        if found.least < FLOOR:
            return f"in the last run {found.worst} was {found.least:.2f} x: a loss"
        if found.score < self._limits.min_gain:
            return f"in the last run the score was {found.score:.2f}, under {self._limits.min_gain:g}"
        return ""

    def _last_run(self, variants: Sequence[Variant]) -> list[list[Speed]]:
        """As many whole rounds as there is time for, at least those of the least plan; else none at all."""
        speeds: list[list[Speed]] = [[] for _ in variants]
        try:
            for number in range(self._rounds):
                self._round(variants, speeds, number, 0, 0.0)
        except _NoTime:
            whole = min(map(len, speeds))
            whole = whole if whole >= self._limits.plans[-1][1] else 0
            speeds = [own[:whole] for own in speeds]
        return speeds

    def _take_turns(self, variants: Sequence[Variant], rounds: int, after: int, more_s: float) -> list[list[Speed]]:
        """The speeds of each, a round after the other; raises _NoTime where no time is left for `after` turns more."""
        speeds: list[list[Speed]] = [[] for _ in variants]
        for number in range(rounds):
            self._round(variants, speeds, number, after, more_s)
        return speeds

    def _round(
        self, variants: Sequence[Variant], speeds: list[list[Speed]], number: int, after: int, more_s: float
    ) -> None:
        turns = list(zip(variants, speeds, strict=True))
        for variant, own in turns if number % 2 == 0 else reversed(turns):
            if not self._fits(1 + after, more_s):
                raise _NoTime
            own.append(self._turn(variant))

    def _turn(self, variant: Variant) -> Speed:
        began = self._clock()
        speed = self._bench.speed(variant)
        self._turns += 1
        self._turn_s = self._clock() - began
        self._turning_s += self._turn_s
        return speed

    def _has_time_for(self, turns: int, runners: int, more_s: float = 0.0) -> bool:
        """Whether so many turns, something else, and a last run of so many runners end within the budget."""
        return self._fits(turns + runners * self._rounds, more_s)

    def _fits(self, turns: int, more_s: float) -> bool:
        """The same for turns alone; each may take as long as they did on average, or as the last one."""
        turn_s = max(self._turning_s / self._turns, self._turn_s)
        return self._clock() - self._began + turns * turn_s + more_s <= self._limits.budget_s

    def _say(self, variant: Variant, what: str) -> None:
        done = len(self._report.rows) - 1
        self._tell(f"{variant.label(self._space.base)}: {what}", done, max(self._planned, done + 1))


def _arithmetic(variant: Variant) -> tuple[str, str, str]:
    """What decides which words a variant says."""
    return variant.form, variant.engine.kv_type, variant.engine.flash_attention
