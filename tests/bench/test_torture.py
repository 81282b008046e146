"""Replies that are bent and cut: exact, and counted right."""

from __future__ import annotations

import pytest

from node.bench import torture
from node.bench.torture import Session, Tally, habits, run


def test_every_reply_of_some_bad_paths_is_exact() -> None:
    heard: list[int] = []
    tally = run(100, 5, lambda total: heard.append(total.replies))
    assert heard == [50, 100]
    assert (tally.replies, tally.wrong, tally.unfinished) == (100, 0, 0)
    assert tally.chunks > 500
    assert tally.datagrams > 1000
    assert tally.rejected > 50, "bent and replayed ones were refused"


def test_after_a_cut_replies_go_on_where_their_readers_are() -> None:
    session = next(one for one in map(Session, range(30)) if _cuts(one) and any(reply.chunks for reply in one.replies))
    assert session.tally.cuts >= 1
    assert all(reply.done and not reply.wrong for reply in session.replies)


def _cuts(session: Session) -> bool:
    return session.run().cuts > 0


@pytest.mark.parametrize("seed", [2014, 2016, 2029])
def test_two_lost_packets_of_five_only_make_it_slow(seed: int) -> None:
    """Each reply has its end within 100 s of virtual time, however bad the rest of the path is."""
    session = Session(seed, replies=20, loss=0.4)
    tally = session.run()
    assert (tally.wrong, tally.unfinished) == (0, 0)
    assert tally.seconds < 100


def test_a_wrong_byte_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(torture.Session):
        def _came(self, reply, event) -> None:  # type: ignore[no-untyped-def]
            super()._came(reply, event)
            reply.text += b"!"

    monkeypatch.setattr(torture, "Session", Forgetful)
    assert run(50, 1).wrong > 0


def test_sessions_add_up() -> None:
    total = Tally(1, 0, 1, 5, 1, 10, 2, 1.5)
    total.add(Tally(2, 1, 0, 5, 0, 5, 0, 0.5))
    assert total == Tally(3, 1, 1, 10, 1, 15, 2, 2.0)


def test_habits_are_bad() -> None:
    import random

    found = [habits(random.Random(seed)) for seed in range(40)]
    assert {one.loss for one in found} == {0.0, 0.05, 0.2, 0.4}
    assert habits(random.Random(1), 0.4).loss == 0.4
    assert all(one.corrupt and one.duplicate and one.reorder for one in found)
