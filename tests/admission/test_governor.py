"""What steers a node: each second's readings and what follows from them, on a clock of our own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from node.admission.governor import Governor, Objectives
from node.admission.ladder import RUNGS, Rung, Step
from node.admission.load import Memory
from node.admission.sensors import Sensors
from node.admission.surge import WINDOW_S
from node.errors import Overloaded
from node.generation import Level, Request

CALM = Memory(kv=(100, 1000))


class Drive:
    """A governor, second by second; `feel` says what requests feel in each of them."""

    def __init__(self, slots: int = 8, objectives: Objectives | None = None) -> None:
        self.governor = Governor(slots, objectives or Objectives())
        self.sensors = Sensors()
        self.now = 1000.0
        self.steps: list[Step] = []
        self._ids = 0

    def second(self, feel: Callable[[], None] = lambda: None, memory: Memory = CALM, running: int = 8) -> None:
        self.now += 1
        feel()
        if step := self.governor.tick(self.sensors, memory, running, self.now):
            self.steps.append(step)

    def gap(self, seconds: float, level: Level = "interactive") -> None:
        """A stream's token came so long after the one before."""
        self._ids += 1
        self.sensors.admitted(str(self._ids), level, 10, self.now - seconds)
        self.sensors.started(str(self._ids), self.now - seconds)
        self.sensors.token(str(self._ids), self.now - seconds)
        self.sensors.token(str(self._ids), self.now)
        self.sensors.ended(str(self._ids), "finished")

    def warm_up(self) -> None:
        """It has shown what it can do with few streams."""
        self.second(lambda: self.gap(0.03), running=1)

    def wait(self, level: Level, seconds: float) -> None:
        """A request got its slot after so long."""
        self._ids += 1
        self.sensors.admitted(str(self._ids), level, 10, self.now - seconds)
        self.sensors.started(str(self._ids), self.now)
        self.sensors.ended(str(self._ids), "finished")

    def climb(self, rung: Rung, stress: float = 9.0) -> None:
        """Until it stands there."""
        self.warm_up()
        while self.governor.rung != rung:
            self.second(lambda: self.gap(0.1 * stress))
            assert self.now < 2000


def request(level: Level, max_tokens: int = 1000, logprobs: int | None = 2) -> Request:
    return Request("r", (1, 2), max_tokens, logprobs=logprobs, level=level)


def test_a_calm_node_changes_nothing() -> None:
    drive = Drive()
    for _ in range(60):
        drive.second(lambda: (drive.gap(0.03), drive.wait("interactive", 0.1)) and None)
    assert (drive.steps, drive.governor.limit, drive.governor.rung) == ([], 8, "normal")
    for level in ("critical", "interactive", "standard", "background"):
        drive.governor.check(level, True, drive.now)
        assert drive.governor.shape(request(level)) == (request(level), ())
    assert not drive.governor.recalls
    status = drive.governor.status()
    assert (status["rung"], status["limited_by"], status["surge_keeps_out"]) == ("normal", "nothing", "nobody")
    assert status["memory_share"] == 0.1


def test_slow_streams_cost_slots_and_give_them_back() -> None:
    drive = Drive()
    drive.warm_up()
    drive.second(lambda: drive.gap(0.2))
    assert drive.governor.limit == 6
    assert drive.governor.status()["limited_by"] == "latency"
    limits = []
    for _ in range(15):
        drive.second(lambda: drive.gap(0.02))
        limits.append(drive.governor.limit)
    assert min(limits) >= 4, "one bad second costs no more than two looks"
    assert limits[-1] == 8
    assert sum(after > before for before, after in itertools.pairwise(limits)) == 8 - min(limits), "one by one"


def test_full_memory_costs_slots_however_quick_the_streams_are() -> None:
    drive = Drive()
    for _ in range(20):
        drive.second(lambda: drive.gap(0.02), Memory(kv=(100, 1000), resident=(99, 100)))
    assert drive.governor.limit == 1
    assert drive.governor.rung == "normal", "memory is no latency"


def test_the_ladder_is_climbed_rung_by_rung_and_left_again() -> None:
    drive = Drive()
    drive.climb("refuse")
    assert [step.new for step in drive.steps] == ["shorten", "shed", "refuse"]
    assert drive.steps[-1].skipped == ("offload", "cached"), "there are no peers, and nobody allowed old answers"
    for _ in range(120):
        drive.second(lambda: drive.gap(0.01))
    assert drive.governor.rung == "normal"
    assert [step.new for step in drive.steps[3:]] == ["shed", "shorten", "normal"]
    steps = drive.governor.status()["steps"]
    assert steps["refuse"] == steps["shed"] == steps["shorten"] == {"up": 1, "down": 1}
    assert steps["cached"] == {"up": 0, "down": 0}


@pytest.mark.parametrize("level", ["critical", "interactive"])
def test_urgent_requests_that_wait_too_long_are_stress(level: Level) -> None:
    drive = Drive()
    for _ in range(4):
        drive.second(lambda: drive.wait(level, 1.2))
    assert drive.governor.rung == "shorten"


def test_so_are_those_that_never_get_a_slot() -> None:
    drive = Drive()
    drive.sensors.admitted("stuck", "interactive", 10, drive.now)
    for _ in range(5):
        drive.second()
    assert drive.governor.rung == "shorten"


def test_standard_and_background_may_wait() -> None:
    drive = Drive()
    for _ in range(20):
        drive.second(lambda: (drive.wait("standard", 60), drive.wait("background", 600)) and None)
    assert drive.governor.rung == "normal"


def kept_out(drive: Drive) -> list[str]:
    refusals: dict[str, Overloaded] = {}
    for level in ("critical", "interactive", "standard", "background"):
        try:
            drive.governor.check(level, False, drive.now)
        except Overloaded as error:
            refusals[level] = error
    for level, error in refusals.items():
        assert level in error.message
        assert 1 <= (error.retry_after or 0) <= 120
    return list(refusals)


@pytest.mark.parametrize(
    ("rung", "out"),
    [
        ("normal", []),
        ("shorten", []),
        ("shed", ["background"]),
        ("cached", ["background"]),
        ("refuse", ["interactive", "standard", "background"]),
    ],
)
def test_who_is_kept_out_on_each_rung(rung: Rung, out: list[str]) -> None:
    drive = Drive(objectives=Objectives(cached_answers=True))
    drive.climb(rung)
    assert kept_out(drive) == out
    assert drive.governor.recalls == (RUNGS.index(rung) >= RUNGS.index("cached"))


def test_a_surge_keeps_the_lower_levels_out() -> None:
    drive = Drive()
    for window in range(14):
        for _ in range(40 if window >= 10 else 4):
            drive.governor._fuse.arrived(drive.now, True)
        drive.now += WINDOW_S
        drive.second()
    assert kept_out(drive)[-2:] == ["standard", "background"]
    assert "standard" in drive.governor.status()["surge_keeps_out"]


@pytest.mark.parametrize(
    ("level", "most", "logprobs"),
    [("critical", 1000, 2), ("interactive", 1000, 2), ("standard", 256, None), ("background", 128, None)],
)
def test_what_shortening_does(level: Level, most: int, logprobs: int | None) -> None:
    drive = Drive()
    drive.climb("shorten")
    shaped, told = drive.governor.shape(request(level))
    assert (shaped.max_tokens, shaped.logprobs) == (most, logprobs)
    assert told == (("shorten",) if most < 1000 else ())
    plain = request(level, 20, None)
    assert drive.governor.shape(plain) == (replace(plain, drafts=False), ()), "the same answer, so nothing is told"


def test_the_gaps_of_standard_and_background_cost_slots_and_no_more() -> None:
    drive = Drive()
    drive.warm_up()
    for _ in range(20):
        running = max(3, drive.governor.limit)  # with fewer it would take the gaps for this machine's usual ones
        drive.second(lambda: (drive.gap(2.0, "standard"), drive.gap(2.0, "background")) and None, running=running)
    assert drive.governor.rung == "normal"
    assert drive.governor.limit == 2, "a quarter of the slots is left whatever latency says"


def test_a_slow_machine_is_no_reason_to_give_anything_up() -> None:
    drive = Drive()
    for _ in range(60):
        drive.second(lambda: drive.gap(0.4), running=2)
    for _ in range(60):
        drive.second(lambda: drive.gap(0.5))
    assert (drive.steps, drive.governor.limit) == ([], 8)
    assert drive.governor.status()["gap_objective_s"] == pytest.approx(0.8, rel=0.11)
    for _ in range(5):
        drive.second(lambda: drive.gap(1.5))
    assert drive.governor.rung == "shorten", "worse than it can do"


def test_nor_is_other_work_on_the_machine() -> None:
    """It halves the slots and learns that this helps nobody."""
    drive = Drive()
    drive.warm_up()
    limits = []
    for _ in range(120):
        drive.second(lambda: drive.gap(0.4), running=drive.governor.limit)
        limits.append(drive.governor.limit)
    assert min(limits) == 2
    assert limits[-1] == 8
    assert drive.governor.rung == "normal"
    for _ in range(60):
        drive.second(lambda: drive.gap(0.03))
    assert drive.governor.status()["gap_objective_s"] == 0.1, "the other work is gone"


def test_objectives_count() -> None:
    drive = Drive(objectives=Objectives(gap_s=0.5, wait_s=10))
    for _ in range(10):
        drive.second(lambda: (drive.gap(0.4), drive.wait("critical", 6)) and None)
    assert (drive.steps, drive.governor.limit) == ([], 8)
