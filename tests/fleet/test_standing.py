"""Three wrong chunks, and a source is asked no more; who has nothing is left alone for a moment."""

from __future__ import annotations

from node.fleet.standing import STRIKES, Standing


def test_three_wrong_chunks() -> None:
    standing = Standing()
    assert [standing.bad("a") for _ in range(STRIKES + 1)] == [False, False, True, False]
    assert standing.dropped("a")
    assert not standing.may_ask("a", 1e9)
    assert standing.may_ask("b", 0.0)
    assert not standing.dropped("b")


def test_right_chunks_in_between_do_not_wash_wrong_ones_away() -> None:
    standing = Standing()
    for _ in range(STRIKES):
        standing.good("a")
        standing.bad("a")
    assert standing.dropped("a")


def test_who_has_nothing_rests_for_a_moment() -> None:
    standing = Standing()
    for _ in range(8):
        assert standing.may_ask("a", 0.0)
        standing.missed("a", 0.0)
    assert not standing.may_ask("a", 0.5)
    assert standing.may_ask("a", 1.0)


def test_who_has_helped_once_is_always_asked() -> None:
    standing = Standing()
    standing.good("a")
    for _ in range(100):
        standing.missed("a", 0.0)
    assert standing.may_ask("a", 0.0)


def test_who_asks_for_something_is_worth_asking() -> None:
    standing = Standing()
    standing.stirred("a")
    standing.silent("a", 0.0)
    assert not standing.may_ask("a", 1.0)
    standing.stirred("a")
    assert standing.may_ask("a", 1.0)
