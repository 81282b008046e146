"""Where time goes: charged to the innermost watched function, and told by a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.bench import ledger as module
from node.bench.ledger import IDLE, WATCHED, Ledger


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


class Work:
    """Something that takes time, part of it in something else."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def outer(self, fails: bool = False) -> str:
        self._clock.now += 10
        self.inner(fails)
        self._clock.now += 5
        return "done"

    def inner(self, fails: bool) -> None:
        self._clock.now += 3
        if fails:
            raise KeyError("wrong")


@pytest.fixture
def watched() -> tuple[Clock, Ledger, Work]:
    clock = Clock()
    ledger, work = Ledger(clock), Work(clock)
    ledger.watch(work, "outer", "outside")
    ledger.watch(work, "inner", "inside")
    return clock, ledger, work


def test_each_kind_gets_its_own_time(watched: tuple[Clock, Ledger, Work]) -> None:
    clock, ledger, work = watched
    clock.now += 7
    assert work.outer() == "done"
    clock.now += 1
    ledger.enter("other")
    assert ledger.spent == {"other": 8, "outside": 15, "inside": 3}


def test_what_fails_is_charged_and_fails(watched: tuple[Clock, Ledger, Work]) -> None:
    clock, ledger, work = watched
    with pytest.raises(KeyError):
        work.outer(fails=True)
    clock.now += 100
    ledger.enter("other")
    assert ledger.spent == {"other": 100, "outside": 10, "inside": 3}


def test_what_is_told_is_up_to_now(watched: tuple[Clock, Ledger, Work]) -> None:
    clock, ledger, work = watched
    work.outer()
    assert ledger.told() == {"other": 0, "outside": 15, "inside": 3}
    clock.now += 2
    assert ledger.told() == {"other": 2, "outside": 15, "inside": 3}


def test_everything_that_is_watched_exists() -> None:
    assert IDLE in WATCHED
    for places in WATCHED.values():
        for owner, names in places:
            for name in names:
                assert callable(getattr(owner, name)), f"{owner} has no {name}"


def test_a_watched_node_is_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every place is replaced and put back here; the words after the file are the command's."""
    for places in WATCHED.values():
        for owner, names in places:
            for name in names:
                monkeypatch.setattr(owner, name, getattr(owner, name))
    served: list[object] = []
    monkeypatch.setattr(module, "serve", lambda words, tell: served.append((words, set(tell()))))
    module.run(["file", "serve"])
    assert served == [(["file", "serve"], {"other"})]
    assert all(hasattr(getattr(owner, names[0]), "__wrapped__") for (owner, names), *_ in WATCHED.values())
