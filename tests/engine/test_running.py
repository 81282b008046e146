"""One request inside the engine."""

from node.engine.running import DUE_S, Running
from node.generation import Request


def test_tokens_have_room_for_the_whole_answer_and_what_was_answered_counts() -> None:
    running = Running(Request("r", (1, 2, 3), 10, continued=(7, 8)), 0, None, None)
    assert running.tokens.shape == (13,)
    assert list(running.tokens[: running.length]) == [1, 2, 3, 7, 8]
    assert (running.generated, running.pending, running.cached) == (2, 5, 0)
    running.cached = 4
    assert running.pending == 1
    assert (running.warm, running.waiting) == (0, False)


def test_it_is_due_after_long_without_a_token_and_stays_so() -> None:
    running = Running(Request("r", (1, 2, 3), 10, continued=(7,)), 0, None, None, now=5.0)
    running.age(4.9 + DUE_S)
    assert not running.due
    running.age(5.0 + DUE_S)
    assert running.due
    running.generated += 1
    running.age(6.0 + DUE_S)
    assert running.due, "what began by that right keeps its cells"


def test_one_that_speaks_in_time_is_never_due() -> None:
    running = Running(Request("r", (1, 2, 3), 10), 0, None, None, now=0.0)
    running.generated = 1
    running.age(100 * DUE_S)
    assert not running.due
