"""The bounded queue: order, room, and an honest Retry-After."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission.queue import FifoQueue
from node.errors import Overloaded


def test_slots_then_waiting_then_refusal() -> None:
    queue = FifoQueue(slots=1, max_waiting=1)
    assert queue.offer("a", 0.0) is True
    assert queue.offer("b", 0.0) is False
    with pytest.raises(Overloaded) as refusal:
        queue.offer("c", 0.0)
    assert refusal.value.retry_after == 10  # two service times of 5 s, the first guess
    assert (queue.running, queue.waiting) == (1, 1)


def test_waiting_run_in_order_of_arrival() -> None:
    queue = FifoQueue(slots=1, max_waiting=9)
    for name in "abc":
        queue.offer(name, 0.0)
    assert queue.release("a", 1.0) == "b"
    assert queue.release("b", 2.0) == "c"
    assert queue.release("c", 3.0) is None


def test_a_removed_request_never_runs() -> None:
    queue = FifoQueue(slots=1, max_waiting=9)
    for name in "abc":
        queue.offer(name, 0.0)
    assert queue.remove("b") is True
    assert queue.remove("b") is False
    assert queue.remove("a") is False  # it runs
    assert queue.release("a", 1.0) == "c"


def test_retry_after_follows_the_measured_time_and_stays_in_its_range() -> None:
    queue = FifoQueue(slots=2, max_waiting=0)
    for turn in range(60):
        queue.offer(str(turn), 0.0)
        queue.release(str(turn), 0.1)
    assert queue.retry_after() == 1
    for turn in range(60):
        queue.offer(str(turn), 0.0)
        queue.release(str(turn), 900.0)
    assert queue.retry_after() == 120


@given(st.lists(st.tuples(st.sampled_from(["offer", "release", "remove"]), st.integers(0, 9)), max_size=80))
def test_never_more_than_its_room_and_nobody_is_lost(steps: list[tuple[str, int]]) -> None:
    queue = FifoQueue(slots=2, max_waiting=3)
    running: list[str] = []
    waiting: list[str] = []
    for now, (verb, pick) in enumerate(steps):
        if verb == "offer":
            name = f"r{now}"
            try:
                (running if queue.offer(name, now) else waiting).append(name)
            except Overloaded:
                assert len(waiting) == 3
        elif verb == "release" and running:
            following = queue.release(running.pop(pick % len(running)), now)
            assert following == (waiting[0] if waiting else None)
            if following:
                running.append(waiting.pop(0))
        elif verb == "remove" and waiting:
            assert queue.remove(waiting.pop(pick % len(waiting)))
        assert (queue.running, queue.waiting) == (len(running), len(waiting))
        assert len(running) <= 2
        assert not waiting or len(running) == 2
