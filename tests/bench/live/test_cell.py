"""A cell on the live path: for root a real one, and the arithmetic of its logs."""

from __future__ import annotations

import pytest

from node.bench.channel import Conditions
from node.bench.linkworld import Talk
from node.bench.live.cell import outcome, play, script_for
from node.bench.live.hosts import obstacle
from node.bench.live.script import Log


def test_logs_of_both_ends_make_replies() -> None:
    script = script_for("link", Talk(50.0, 1, 2), 1)
    made = Log({0: [0.0, 0.1], 1: [1.0, 1.1]}, [])
    came = Log({0: [0.1, 0.2], 1: [1.1, 1.2]}, [0, 1])
    found = outcome(script, made, came, {"udp 5001": (9, 800), "tcp 5005": (1, 100)}, 0.05)
    (reply,) = found.replies
    assert (reply.made, reply.came, reply.whole) == ([1.0, 1.1], [1.1, 1.2], True)
    assert found.bytes == 200
    assert found.delay == 0.05


def test_what_never_came_is_not_whole() -> None:
    script = script_for("link", Talk(50.0, 1, 2), 1)
    found = outcome(script, Log({1: [1.0, 1.1]}, []), Log(), {}, 0.05)
    assert [reply.whole for reply in found.replies] == [False]
    assert found.replies[0].came == []


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_replies_over_a_real_lossy_path() -> None:
    talk = Talk(100.0, 1, 20)
    chosen = [script_for(scheme, talk, 1, deadline_s=60) for scheme in ("link", "eloquent")]
    seen = play(Conditions(rtt=0.04, loss=0.05), chosen, 1)
    for found in seen.outcomes.values():
        assert [reply.whole for reply in found.replies] == [True]
        assert all(b - a >= 0.02 for a, b in zip(found.replies[0].made, found.replies[0].came, strict=True))
        assert found.bytes > 40
