"""A rollout stops itself where too many nodes report trouble, and not before."""

from __future__ import annotations

import msgspec
import pytest

from node.fleet import progress
from node.fleet.directive import Rollout
from node.fleet.progress import Report, tally

ROLLOUT = Rollout(
    name="first", revision=2, profile="kiosk", profile_sha256="a" * 64, min_executed=3, abort_percent=34.0
)


def said(outcomes: str, revision: int = 2, rollout: str = "first") -> list[Report]:
    """One letter a node: c ommitted, r olled back, f ailed, t imed out, d ropped."""
    words = {"c": "committed", "r": "rolled back", "f": "failed", "t": "timed out", "j": "rejected", "d": "dropped"}
    return [
        Report(node=f"n{number}", rollout=rollout, revision=revision, outcome=words[letter], reason="why\nlong story")
        for number, letter in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("outcomes", "stops"),
    [
        ("", False),
        ("ccc", False),
        ("rr", False),  # two of two, but three must have ended
        ("rrd", False),  # what gave way to news has not ended
        ("rrc", True),
        ("rcc", False),  # 33.3 %
        ("fct", True),
        ("jjj", True),
        ("c" * 66 + "r" * 33, False),
        ("c" * 66 + "r" * 34, True),
    ],
)
def test_when_it_stops(outcomes: str, stops: bool) -> None:
    assert tally(ROLLOUT, said(outcomes)).must_stop is stops


def test_only_this_revision_counts() -> None:
    counted = tally(ROLLOUT, [*said("rrrr", revision=1), *said("rrrr", rollout="other"), *said("cc")])
    assert (counted.ended, counted.bad, counted.must_stop) == (2, 0, False)


def test_a_node_counts_once_with_its_last_word() -> None:
    counted = tally(ROLLOUT, [*said("rrr"), *said("ccc")])
    assert counted.outcomes == {"committed": 3}
    assert tally(ROLLOUT, said("r") * 9).ended == 1


def test_reasons_are_told_by_their_first_line() -> None:
    counted = tally(ROLLOUT, said("rrc"))
    assert counted.reasons == {"why": 2}
    assert round(counted.bad_percent) == 67
    assert tally(ROLLOUT, []).bad_percent == 0


def test_zero_percent_means_the_first_bad_one() -> None:
    strict = msgspec.structs.replace(ROLLOUT, abort_percent=0.0, min_executed=1)
    assert not tally(strict, said("ccc")).must_stop
    assert tally(strict, said("cccr")).must_stop


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b'{"node": 1}', b" " * (65 << 10), b'{"kind": "node"}'])
def test_what_is_no_report(raw: bytes) -> None:
    assert progress.read(raw) is None


def test_a_report_of_a_newer_node() -> None:
    raw = b'{"node": "a", "rollout": "first", "revision": 1, "outcome": "committed", "mood": "fine"}'
    assert progress.read(raw) == Report(node="a", rollout="first", revision=1, outcome="committed")
