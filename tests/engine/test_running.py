"""One request inside the engine."""

from node.engine.running import Running
from node.generation import Request


def test_tokens_have_room_for_the_whole_answer_and_what_was_answered_counts() -> None:
    running = Running(Request("r", (1, 2, 3), 10, continued=(7, 8)), 0, None, None)
    assert running.tokens.shape == (13,)
    assert list(running.tokens[: running.length]) == [1, 2, 3, 7, 8]
    assert (running.generated, running.pending, running.cached) == (2, 5, 0)
    running.cached = 4
    assert running.pending == 1
    assert (running.warm, running.waiting) == (0, False)
