"""The queue: who runs, who makes room, who is refused, and that every wait ends."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.admission.queue import AdmissionQueue, Decision
from node.admission.rules import AGED_EVERY, Rules, wait_bound_s
from node.admission.score import Weights
from node.errors import InvalidRequest, Overloaded
from node.generation import LEVELS, Caller, Level, Request


def request(id: str, level: Level = "standard", *, ttl_s: float | None = None, session: str = "") -> Request:
    return Request(id, (1, 2, 3), 5, level=level, ttl_s=ttl_s, caller=Caller("t", "u", session))


def queue_of(slots: int = 1, max_parked: int | None = None, **rules: object) -> AdmissionQueue:
    return AdmissionQueue(slots, Rules(**rules), max_parked)  # type: ignore[arg-type]


def fill(queue: AdmissionQueue, *ids: str, level: Level = "standard", now: float = 0.0) -> Decision:
    for id in ids:
        queue.offer(request(id, level), now)
    return queue.decide(now)


def test_slots_then_waiting_then_refusal() -> None:
    queue = queue_of(slots=1, max_waiting=1)
    assert fill(queue, "a") == Decision(start=("a",))
    assert fill(queue, "b") == Decision()
    with pytest.raises(Overloaded) as refusal:
        queue.offer(request("c"), 0.0)
    assert refusal.value.retry_after == 10  # two service times of 5 s, the first guess
    assert (queue.running, queue.waiting, queue.parked) == (1, 1, 0)


def test_no_room_to_wait_refuses_nobody_who_need_not() -> None:
    queue = queue_of(slots=2, max_waiting=0)
    assert fill(queue, "a", "b").start == ("a", "b")
    with pytest.raises(Overloaded):
        queue.offer(request("c"), 0.0)


def test_one_level_is_first_come_first_served() -> None:
    queue = queue_of()
    for at, name in enumerate("abcd"):
        fill(queue, name, now=float(at))
    order = []
    for now, name in enumerate("abc", start=10):
        queue.release(name, float(now))
        order += queue.decide(float(now)).start
    assert order == ["b", "c", "d"]


def test_higher_levels_go_first() -> None:
    queue = queue_of(preempt="never")
    fill(queue, "runs")
    for at, level in enumerate(reversed(LEVELS)):
        queue.offer(request(level, level), float(at))
    order = []
    for name in ("runs", "critical", "interactive", "standard"):
        queue.release(name, 10.0)
        order += queue.decide(10.0).start
    assert order == list(LEVELS)


def test_within_a_level_warm_and_fresh_requests_gain_a_part_of_the_promised_wait() -> None:
    queue = queue_of(weights=Weights(0.6, 0.2, 0.2))
    fill(queue, "runs")
    queue.offer(request("cold"), 0.0)
    queue.offer(request("warm"), 0.2, affinity=1.0)  # worth 0.8 s * 0.2 / 0.6
    queue.offer(request("too late"), 0.3, affinity=1.0)
    order = []
    for name in ("runs", "warm", "cold"):
        queue.release(name, 1.0)
        order += queue.decide(1.0).start
    assert order == ["warm", "cold", "too late"]


def test_a_session_that_was_just_here_goes_before_a_stranger() -> None:
    queue = queue_of()
    queue.offer(request("runs", session="mine"), 0.0)
    queue.decide(0.0)
    queue.offer(request("stranger", session="new"), 9.95)
    queue.offer(request("mine again", session="mine"), 10.0)
    queue.release("runs", 10.0)
    assert queue.decide(10.0).start == ("mine again",)


def test_a_removed_request_never_runs() -> None:
    queue = queue_of()
    fill(queue, "a", "b", "c")
    assert queue.remove("b") is True
    assert queue.remove("b") is False
    assert queue.remove("a") is False  # it runs
    assert queue.remove("never seen") is False
    queue.release("a", 1.0)
    assert queue.decide(1.0).start == ("c",)
    assert queue.waiting == queue.waiting_bytes == 0


def test_an_expired_request_comes_out_and_never_runs() -> None:
    queue = queue_of()
    fill(queue, "runs")
    queue.offer(request("short", ttl_s=2.0), 1.0)
    queue.offer(request("long", ttl_s=9.0), 1.0)
    queue.offer(request("patient"), 1.0)
    assert queue.next_at == 3.0
    assert queue.decide(2.9) == Decision()
    queue.release("runs", 3.1)
    assert queue.decide(3.1) == Decision(expire=("short",), start=("long",)), "a free slot comes too late for it"
    assert queue.next_at is None, "what runs cannot expire"
    queue.release("long", 99.0)
    assert queue.decide(99.0) == Decision(start=("patient",))


def test_no_time_to_live_means_now_or_never() -> None:
    queue = queue_of()
    queue.offer(request("now", ttl_s=0.0), 0.0)
    assert queue.decide(0.0) == Decision(start=("now",))
    queue.offer(request("never", ttl_s=0.0), 1.0)
    assert queue.decide(1.0) == Decision(expire=("never",))


def test_critical_takes_the_slot_of_the_lowest_that_began_last() -> None:
    queue = queue_of(slots=4, displaces=1)
    for at, (name, level) in enumerate(
        [("s", "standard"), ("old", "background"), ("new", "background"), ("i", "interactive")]
    ):
        queue.offer(request(name, level), float(at))  # type: ignore[arg-type]
        queue.decide(float(at))
    assert fill(queue, "c1", level="critical", now=5.0) == Decision(park=("new",), start=("c1",))
    assert fill(queue, "c2", level="critical", now=5.0) == Decision(park=("old",), start=("c2",))
    assert fill(queue, "c3", level="critical", now=5.0) == Decision(park=("s",), start=("c3",))
    assert fill(queue, "c4", level="critical", now=5.0) == Decision(park=("i",), start=("c4",))
    assert fill(queue, "c5", level="critical", now=5.0) == Decision(), "nobody is lower now"
    assert (queue.running, queue.parked, queue.waiting) == (4, 4, 1)


def test_the_parked_come_back_before_newcomers_of_their_level() -> None:
    queue = queue_of(slots=1)
    fill(queue, "parked", level="background")
    queue.offer(request("waited before", "background"), 0.5)
    fill(queue, "c", level="critical", now=1.0)
    queue.offer(request("higher"), 2.0)
    order = []
    for name in ("c", "higher", "parked", "waited before"):
        queue.release(name, 3.0)
        decision = queue.decide(3.0)
        order.append((decision.resume, decision.start))
    assert order == [((), ("higher",)), (("parked",), ()), ((), ("waited before",)), ((), ())]


def test_who_cannot_be_parked_is_set_aside_for_an_urgent_one() -> None:
    queue = queue_of(slots=3, max_parked=1, displaces=1)
    fill(queue, "a", "b", "c")
    assert fill(queue, "c1", level="critical") == Decision(park=("c",), start=("c1",))
    assert fill(queue, "c2", level="critical") == Decision(unseat=("b",), start=("c2",))
    assert queue.parked == 2
    queue.release("c1", 1.0)
    assert queue.decide(1.0) == Decision(resume=("c",))
    queue.release("c2", 1.0)
    assert queue.decide(1.0) == Decision(resume=("b",))
    assert fill(queue_of(max_parked=0, slots=1), "a", level="background").start == ("a",)


def test_who_may_preempt_is_a_rule() -> None:
    for preempt, parks in (("never", set()), ("critical", {"critical"}), ("interactive", {"critical", "interactive"})):
        for level in ("critical", "interactive"):
            queue = queue_of(preempt=preempt)
            fill(queue, "b", level="background")
            assert bool(fill(queue, "x", level=level).park) == (level in parks), (preempt, level)  # type: ignore[arg-type]


def test_an_urgent_request_takes_more_than_one_slot_from_those_below() -> None:
    queue = queue_of(slots=8, displaces=3)
    fill(queue, *"abcdefgh")
    assert fill(queue, "u1", level="interactive", now=1.0) == Decision(park=("h", "g", "f"), start=("u1",))
    assert fill(queue, "u2", level="critical", now=2.0) == Decision(park=("e", "d", "c"), start=("u2",))
    queue.release("a", 3.0)
    assert queue.decide(3.0) == Decision(resume=("h",)), "as many as before, the longest parked first"
    assert (queue.running, queue.parked) == (4, 5)
    assert fill(queue, "u3", level="critical", now=4.0) == Decision(park=("h", "b"), start=("u3",)), "never below none"
    queue.release("u1", 5.0)
    queue.release("u2", 5.0)
    assert queue.decide(5.0) == Decision(resume=("g", "f", "e", "d", "c")), "5 beside one urgent request"
    queue.release("u3", 6.0)
    assert queue.decide(6.0) == Decision(resume=("h", "b"))


def test_where_nobody_is_urgent_nothing_is_displaced() -> None:
    queue = queue_of(slots=2, preempt="never", displaces=3)
    assert fill(queue, "c", "d", level="critical").start == ("c", "d")
    queue.release("c", 1.0)
    assert fill(queue, "low", level="background", now=1.0).start == ("low",)
    queue = queue_of(slots=2, preempt="critical", displaces=3)
    fill(queue, "i", level="interactive")
    assert fill(queue, "low", level="background").start == ("low",)


def test_a_line_that_others_cut_into_tells_its_real_wait() -> None:
    queue = queue_of(slots=1, max_waiting=100, preempt="never", patience=1e9)
    fill(queue, "runs", "s0", "s1", "s2", "s3")
    now, running = 0.0, "runs"
    for number in range(40):  # three of four turns go to somebody above
        queue.offer(request(f"i{number}", "interactive"), now)
        now += 1.0
        queue.release(running, now)
        if number % 4 == 3:
            queue.remove(f"i{number}")
            queue.offer(request(f"s{number}x", "standard"), now)
        (running,) = queue.decide(now).start
    assert queue.predicted_wait_s("standard", now) == pytest.approx(20, rel=0.2), "4 wait before it, 4 s a turn"
    assert queue.service.wait_s(5, 1) == pytest.approx(5, rel=0.2), "which their own turns do not tell"


def test_a_lagging_reader_frees_its_slot_and_takes_it_back() -> None:
    queue = queue_of(slots=1)
    fill(queue, "slow", "other")
    queue.hold("slow", True)
    assert queue.decide(1.0) == Decision(park=("slow",), start=("other",))
    fill(queue, "newcomer", now=2.0)
    queue.release("other", 3.0)
    assert queue.decide(3.0) == Decision(start=("newcomer",)), "it still lags"
    queue.offer(request("later"), 4.0)
    queue.hold("slow", False)
    assert queue.decide(5.0) == Decision(), "no slot yet"
    queue.release("newcomer", 6.0)
    assert queue.decide(6.0) == Decision(resume=("slow",))


def test_a_lagging_reader_keeps_its_slot_where_it_cannot_be_parked() -> None:
    queue = queue_of(slots=1, max_parked=0)
    fill(queue, "slow", "other")
    queue.hold("slow", True)
    assert queue.decide(1.0) == Decision(park=("slow",)), "it pauses, but nobody else can start"
    assert queue.running == 1
    queue.hold("slow", False)
    assert queue.decide(2.0) == Decision(resume=("slow",))


def test_laggards_leave_room_to_preempt_and_make_room_for_anybody() -> None:
    queue = queue_of(slots=4)
    fill(queue, "a", "b", "c", "d", level="critical")
    for name in "abc":
        queue.hold(name, True)
    assert queue.decide(1.0).park == ("a", "b", "c")
    assert (queue.parked, queue.running) == (2, 2), "half of the room"
    assert fill(queue, "e", "f", level="critical") == Decision(start=("e", "f"))
    assert fill(queue, "g", level="critical") == Decision(park=("c",), start=("g",)), "also for one of its own level"


def test_an_urgent_one_whose_reader_stopped_shuts_nobody_out() -> None:
    queue = queue_of(slots=2)
    fill(queue, "a", "b", level="critical")
    fill(queue, "low", level="background")
    for name in "ab":
        queue.hold(name, True)
    decision = queue.decide(1.0)
    assert (decision.park, decision.start) == (("a", "b"), ("low",)), "one keeps its slot, but does nothing with it"
    queue.hold("b", False)
    assert queue.decide(2.0) == Decision(park=("low",), resume=("b",)), "until its reader is back"


def test_one_that_is_parked_and_lags_waits_for_both() -> None:
    queue = queue_of(slots=1)
    fill(queue, "low")
    fill(queue, "high", level="critical")
    queue.hold("low", True)
    queue.release("high", 1.0)
    assert queue.decide(1.0) == Decision()
    queue.hold("low", False)
    assert queue.decide(2.0) == Decision(resume=("low",))
    queue.hold("low", True)
    queue.decide(3.0)
    queue.release("low", 4.0)  # cancelled while parked
    assert (queue.parked, queue.running) == (0, 0)


def test_holds_of_who_waits_or_is_unknown_are_ignored() -> None:
    queue = queue_of()
    fill(queue, "runs", "waits")
    queue.hold("waits", True)
    queue.hold("nobody", True)
    queue.hold("runs", False)
    assert queue.decide(1.0) == Decision()


def test_a_lower_limit_starts_nobody_and_stops_nobody() -> None:
    queue = queue_of(slots=3)
    fill(queue, "a", "b", "c", "d")
    queue.limit = 1
    for name in ("a", "b"):
        queue.release(name, 1.0)
        assert queue.decide(1.0) == Decision()
    queue.release("c", 1.0)
    assert queue.decide(1.0) == Decision(start=("d",))
    queue.limit = 0
    assert queue.limit == 1
    queue.limit = 99
    assert queue.limit == 3


def test_a_newcomer_whose_wait_is_hopeless_is_refused_early() -> None:
    queue = queue_of(slots=1, max_waiting=100, urgent_patience=50)
    for turn in range(40):
        fill(queue, str(turn), now=0.0)
        queue.release(str(turn), 4.0)
    fill(queue, "runs", *(f"w{number}" for number in range(3)), level="interactive")
    assert queue.predicted_wait_s("interactive", 4.0) == pytest.approx(16.0, rel=0.02)
    with pytest.raises(Overloaded, match="interactive") as refusal:  # 50 times 300 ms
        queue.offer(request("too long", "interactive"), 0.0)
    assert refusal.value.retry_after == 17
    queue.offer(request("takes its time", "background"), 0.0)
    with pytest.raises(Overloaded, match="time to live"):
        queue.offer(request("hurried", "background", ttl_s=5.0), 0.0)
    queue.offer(request("first in line", "critical", ttl_s=5.0), 0.0)
    assert queue.decide(0.0).park == ("runs",)
    queue.offer(request("next in line", "critical"), 0.0)
    with pytest.raises(Overloaded, match="critical"):
        queue.offer(request("behind it", "critical"), 20.0)


def test_levels_leave_room_for_those_above() -> None:
    queue = queue_of(slots=1, max_waiting=8)
    fill(queue, "runs", level="critical")
    counts = {}
    for level in reversed(LEVELS):
        for number in itertools.count():
            try:
                queue.offer(request(f"{level}{number}", level), 0.0)
            except Overloaded:
                break
        counts[level] = queue.waiting
    assert counts == {"background": 4, "standard": 7, "interactive": 8, "critical": 8}


def test_memory_that_waits_is_bounded() -> None:
    queue = queue_of(slots=1, max_bytes=40_000, max_waiting=1000)
    fill(queue, "runs")
    with pytest.raises(Overloaded, match="memory"):
        queue.offer(Request("huge", tuple(range(2000)), 5), 0.0)
    queue.offer(Request("fits", tuple(range(800)), 5), 0.0)
    assert 28_800 < queue.waiting_bytes < 35_000
    queue.remove("fits")
    assert queue.waiting_bytes == 0


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (request("x", "urgent"), "level"),  # type: ignore[arg-type]
        (request("x", ttl_s=-1.0), "ttl_s"),
        (request("x", ttl_s=float("nan")), "ttl_s"),
    ],
)
def test_wrong_requests(bad: Request, param: str) -> None:
    queue = queue_of()
    with pytest.raises(InvalidRequest) as refusal:
        queue.offer(bad, 0.0)
    assert refusal.value.param == param
    with pytest.raises(ValueError, match="share"):
        queue.offer(request("x"), 0.0, affinity=1.5)
    assert queue.waiting == 0


def test_fifo_knows_no_levels() -> None:
    queue = queue_of(slots=1, policy="fifo", max_waiting=4, preempt="interactive")
    fill(queue, "b", level="background")
    for at, level in enumerate(("background", "standard", "critical", "interactive")):
        queue.offer(request(level, level), float(at), affinity=at / 4)  # type: ignore[arg-type]
    assert queue.decide(5.0) == Decision(), "nobody is preempted"
    with pytest.raises(Overloaded):
        queue.offer(request("more", "critical"), 0.0)
    order = []
    for name in ("b", "background", "standard", "critical"):
        queue.release(name, 9.0)
        order += queue.decide(9.0).start
    assert order == ["background", "standard", "critical", "interactive"]


def test_aged_ones_get_their_turn_but_never_all_turns() -> None:
    queue = queue_of(slots=1, max_waiting=500, ageing_s=10, urgent_patience=1e9)
    fill(queue, "runs", level="critical")
    for number in range(20):
        queue.offer(request(f"b{number}", "background"), 0.0)
    now, running, starts = 100.0, "runs", []
    for number in range(80):  # there are always critical ones waiting
        queue.offer(request(f"c{number}", "critical"), now)
        queue.offer(request(f"d{number}", "critical"), now)
        queue.release(running, now)
        (running,) = queue.decide(now).start
        starts.append(running[0])
    assert starts.count("b") == 80 // AGED_EVERY
    assert all(not (one == other == "b") for one, other in itertools.pairwise(starts))


def test_stalled_readers_cannot_keep_all_slots() -> None:
    """Sixteen of them: eight hold slots, four are parked; each that comes then is served within seconds."""
    queue = queue_of(slots=8, max_parked=8, max_waiting=64, patience=1e9)
    for number in range(16):
        fill(queue, f"s{number}")
        queue.hold(f"s{number}", True)
    assert (queue.running, queue.parked, queue.waiting) == (8, 4, 4)
    queue.offer(request("alive"), 1.0)
    assert queue.decide(1.0) == Decision()
    assert queue.decide(3.0) == Decision(
        unseat=("s4", "s5", "s6", "s7", "s8"), start=("s12", "s13", "s14", "s15", "alive")
    )
    queue.hold("s4", False)
    assert queue.decide(4.0) == Decision(unseat=("s9",), resume=("s4",)), "its reader is back"
    queue.release("s4", 5.0)
    for number in (0, 5, 10, 12):
        queue.release(f"s{number}", 6.0)
    assert (queue.running, queue.parked) == (5, 3 + 4)


def test_nobody_is_set_aside_for_nobody() -> None:
    queue = queue_of(slots=1, max_parked=0)
    fill(queue, "slow")
    queue.hold("slow", True)
    assert queue.decide(0.0) == Decision(park=("slow",)), "held, on its slot"
    assert queue.decide(99.0) == Decision()
    queue.offer(request("other"), 100.0)
    assert queue.decide(100.0) == Decision(unseat=("slow",), start=("other",))


@pytest.mark.parametrize(("level", "after"), [("standard", 10.0), ("background", 20.0)])
def test_streams_that_displace_it_do_not_starve_one_that_waits_alone(level: Level, after: float) -> None:
    """Nobody of a higher level waits, and slots are free: only those that run are in its way."""
    queue = queue_of(slots=8, ageing_s=10)
    fill(queue, *(f"i{number}" for number in range(6)), level="interactive")
    queue.offer(request("low", level), 0.0)
    assert queue.decide(after - 1) == Decision()
    assert queue.decide(after + 0.1) == Decision(start=("low",))
    queue.offer(request("i6", "interactive"), after + 1)
    queue.offer(request("critical", "critical"), after + 1)
    assert sorted(queue.decide(after + 1).start) == ["critical"], "it is not parked, and one slot was left"


@pytest.mark.parametrize("strict", [False, True])
def test_a_limit_for_the_pace_of_others_does_not_starve_it(strict: bool) -> None:
    queue = queue_of(slots=8, ageing_s=10)
    fill(queue, *(f"i{number}" for number in range(6)), level="interactive")
    queue.offer(request("low", "background"), 0.0)
    queue.offer(request("i6", "interactive"), 19.0)
    queue.limit = 4
    queue.limit_aged(strict)
    assert queue.decide(19.0) == Decision()
    assert queue.decide(21.0) == Decision(start=() if strict else ("low",)), "the urgent one waits for the limit"
    for number in range(4):
        queue.release(f"i{number}", 30.0)
    assert queue.decide(30.0).start == (("i6", "low") if strict else ("i6",))


def test_the_aged_follow_each_other_on_one_slot() -> None:
    queue = queue_of(slots=8, ageing_s=10)
    fill(queue, *(f"i{number}" for number in range(4)), level="interactive")
    for number in range(3):
        queue.offer(request(f"b{number}", "background"), 0.0)
    assert queue.decide(25.0) == Decision(start=("b0",)), "four slots are free, one is for the aged"
    queue.release("b0", 26.0)
    assert queue.decide(26.0) == Decision(), "the next one waits for its turn"
    assert queue.decide(36.0) == Decision(start=("b1",))


def test_one_that_runs_by_its_age_takes_no_slot_from_one_that_has_just_begun() -> None:
    queue = queue_of(slots=8, ageing_s=10)
    fill(queue, "i", level="interactive")
    fill(queue, *"abcde", level="background")
    for name in "xy":
        queue.offer(request(name, "background"), 0.0)
    queue.release("a", 50.0)
    assert queue.decide(50.0) == Decision(start=("x", "y")), "one in the place of a, one by its age"


def test_who_catches_up_while_urgent_ones_hold_its_slot_does_not_go_on() -> None:
    """Whoever acts on a decision would let it go on last of all, beside those who have the slots."""
    queue = queue_of(slots=4)
    fill(queue, "x", "y", "runs", "lags", level="background")
    for name in ("x", "y", "lags"):
        queue.hold(name, True)
        assert queue.decide(1.0) == Decision(park=(name,)), "the third one keeps its slot: there is no room left"
    assert fill(queue, "i", level="interactive", now=1.0) == Decision(start=("i",))
    queue.hold("lags", False)
    assert queue.decide(1.5) == Decision(park=("lags",))
    assert queue.running == 2
    queue.release("i", 2.0)
    assert queue.decide(2.0) == Decision(resume=("lags",))


def test_one_that_lags_is_parked_where_another_has_just_gone_on() -> None:
    queue = queue_of(slots=3, max_parked=1)
    fill(queue, "first")
    assert fill(queue, "c1", "c2", level="critical") == Decision(park=("first",), start=("c1", "c2"))
    fill(queue, "a", "b")
    queue.release("c1", 1.0)
    assert queue.decide(1.0) == Decision()
    queue.hold("c2", True)
    assert queue.decide(1.0) == Decision(park=("c2",), resume=("first",), start=("a", "b"))


def test_a_burst_after_a_quiet_time_is_not_told_that_its_line_stands_still() -> None:
    queue = queue_of(slots=1)
    for number in range(6):
        fill(queue, str(number), now=float(number))
        queue.release(str(number), number + 0.5)
    fill(queue, "runs", now=500.0)
    for number in range(8):
        queue.offer(request(f"burst {number}"), 500.0)
    assert queue.predicted_wait_s("standard", 500.0) < 30
    assert queue.predicted_wait_s("standard", 510.0) == pytest.approx(90), "now it does: nobody moved for 10 s"


@pytest.mark.parametrize("every", [0.5, 5.0])
def test_standard_requests_in_the_way_of_background_are_few_under_full_critical_load(every: float) -> None:
    """Only by their age both run then, one in half a minute: the door tells so before the line ever moved."""
    queue, names = queue_of(slots=8), itertools.count()
    ends: dict[str, float] = {}
    waits: list[float] = []
    came: float | None = None
    for tick in range(2400):
        now = tick / 4
        levels: list[Level] = ["critical"] * (3 - queue.waiting_at("critical"))
        if tick % int(4 * every) == 0:
            levels.append("standard")
        if came is None and now >= 60:
            levels.append("background")
        for level in levels:
            try:
                queue.offer(request(f"{level} {next(names)}", level), now)
            except Overloaded:
                continue
            came = now if level == "background" else came
        for name in queue.decide(now).start:
            ends[name] = now + 2.0
            if name.startswith("background") and came is not None:
                waits.append(now - came)
        for name in [name for name, end in ends.items() if end <= now]:
            del ends[name]
            queue.release(name, now)
    assert waits, "it runs"
    assert waits[0] <= 120 + 4 * 30


def test_one_that_runs_by_its_age_keeps_its_slot() -> None:
    queue = queue_of(slots=1, ageing_s=10)
    fill(queue, "runs", level="critical")
    queue.offer(request("aged", "background"), 0.0)
    queue.offer(request("c1", "critical"), 40.0)
    queue.release("runs", 40.0)
    assert queue.decide(40.0) == Decision(start=("aged",))
    queue.release("aged", 41.0)
    assert queue.decide(41.0) == Decision(start=("c1",))


@pytest.mark.parametrize("level", ["interactive", "standard", "background"])
@pytest.mark.parametrize("slots", [1, 4])
def test_every_wait_is_bounded_under_full_critical_load(level: Level, slots: int) -> None:
    """Critical requests fill the queue again after each step; those below run within the stated bound all the same."""
    rules = Rules(ageing_s=20.0, max_waiting=16)
    queue = AdmissionQueue(slots, rules)
    chance = random.Random(slots)
    bound = wait_bound_s(rules, level, slots, longest_s=3.0)
    names = (str(number) for number in itertools.count())
    asked: dict[str, float] = {}
    waits: list[float] = []
    ends: dict[str, float] = {}
    now = 0.0
    while now < 300:
        while len(asked) < 5:
            name = next(names)
            try:
                queue.offer(request(name, level), now)
            except Overloaded:
                break
            asked[name] = now
        for _ in range(20):
            try:
                queue.offer(request(next(names), "critical"), now)
            except Overloaded:
                break
        decision = queue.decide(now)
        for name in decision.park:
            del ends[name]
        for name in decision.start + decision.resume:
            ends[name] = now + chance.uniform(0.5, 3.0)
            if name in asked:
                waits.append(now - asked.pop(name))
        assert all(now - came <= bound for came in asked.values()), (now, bound)
        now += 0.25
        for name in [name for name, end in ends.items() if end <= now]:
            del ends[name]
            queue.release(name, now)
    assert len(waits) >= 5
    assert bound >= max(waits) > 3.0, "the load was no load"


VERBS = st.sampled_from(["offer", "release", "remove", "hold", "let go", "limit", "wait"])


@settings(max_examples=150)
@given(st.lists(st.tuples(VERBS, st.integers(0, 99), st.sampled_from(LEVELS)), max_size=120), st.integers(0, 3))
def test_decisions_keep_the_bounds_and_lose_nobody(steps: list[tuple[str, int, Level]], max_parked: int) -> None:
    queue = AdmissionQueue(3, Rules(max_waiting=5, preempt="interactive"), max_parked)
    state: dict[str, str] = {}
    aside: set[str] = set()  # left the source
    now = 0.0

    def those(*states: str) -> list[str]:
        return [id for id, word in state.items() if word in states]

    for number, (verb, pick, level) in enumerate(steps):
        now += pick / 50
        began, waiting = those("runs", "paused"), those("waits")
        if verb == "offer":
            try:
                queue.offer(request(str(number), level, ttl_s=1 + pick if pick % 2 else None), now)
                state[str(number)] = "waits"
            except Overloaded:
                assert queue.running >= queue.limit
        elif verb == "release" and began:
            id = began[pick % len(began)]
            queue.release(id, now)
            del state[id]
        elif verb == "remove" and waiting:
            id = waiting[pick % len(waiting)]
            assert queue.remove(id)
            del state[id]
        elif verb in ("hold", "let go") and began:
            queue.hold(began[pick % len(began)], verb == "hold")
        elif verb == "limit":
            queue.limit = pick % 4
        decision = queue.decide(now)
        for id in decision.expire:
            assert state.pop(id) == "waits"
        for id in decision.park:
            assert state[id] in ("runs", "paused")
            state[id] = "paused"
        for id in decision.unseat:
            assert state[id] in ("runs", "paused")
            state[id] = "paused"
        for id in decision.resume:
            assert state[id] == "paused"
            state[id] = "runs"
        for id in decision.start:
            assert state[id] == "waits"
            state[id] = "runs"
        assert queue.waiting == len(those("waits"))
        assert queue.running + queue.parked == len(those("runs", "paused"))
        assert len(those("runs")) <= queue.running <= 3
        aside = (aside | {*decision.unseat}) & {*those("paused")}
        assert queue.parked <= max_parked + len(aside)
        if queue.running < queue.limit:
            urgent = queue.waiting_at("critical") + queue.waiting_at("interactive")
            assert not urgent, "nobody urgent waits beside a free slot"
            assert not queue.waiting or queue.running, "and nobody at all beside an idle engine"
        assert queue.decide(now) == Decision(), "one decision is enough"
