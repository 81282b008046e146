"""The table of an update: where every word leads, that it always ends, and who takes part."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.fleet import progress
from node.fleet.directive import Rollout
from node.fleet.rollout import (
    BAD,
    MOST_DEATHS,
    MOST_STEPS,
    TABLE,
    State,
    Update,
    Word,
    place,
    report_of,
    started,
    step,
    takes_part,
    window_open,
)

ROLLOUT = Rollout(name="spring", revision=3, profile="kiosk", profile_sha256="ab" * 32)
GOOD: tuple[Word, ...] = ("accepted", "fetched", "verified", "ready", "switched", "passed", "committed", "reported")


def begun(**changes: object) -> Update:
    return Update(replace_rollout(**changes), "fleet", began=0.0)


def replace_rollout(**changes: object) -> Rollout:
    return Rollout(**{name: getattr(ROLLOUT, name) for name in ROLLOUT.__struct_fields__} | changes)


def walk(update: Update, *words: Word) -> Update:
    for word in words:
        update = step(update, word)
    return update


def at(state: State, **changes: object) -> Update:
    return replace(begun(**changes), state=state)


def test_the_good_way() -> None:
    seen = [begun()]
    for word in GOOD:
        seen.append(step(seen[-1], word))
    states = ["check", "fetch", "verify", "staged", "switch", "probation", "commit", "report", "idle"]
    assert [update.state for update in seen] == states
    assert [update.serves_new for update in seen] == [state in ("probation", "commit") for state in states]
    assert (seen[-1].outcome, seen[-1].steps) == ("committed", len(GOOD))


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        (("refused", "reported"), "rejected"),
        (("accepted", "failed", "reported"), "failed"),
        (("accepted", "timed out", "reported"), "timed out"),
        (("accepted", "fetched", "verified", "timed out", "reported"), "timed out"),
        (("accepted", "fetched", "verified", "dropped", "reported"), "dropped"),
        ((*GOOD[:4], "failed", "restored", "reported"), "rolled back"),
        ((*GOOD[:5], "failed", "restored", "reported"), "rolled back"),
        ((*GOOD[:5], "broken", "restored", "reported"), "rolled back"),
        (("accepted", "fetched", "damaged", "fetched", *GOOD[2:]), "committed"),
        ((*GOOD[:4], "damaged", *GOOD[1:]), "committed"),
    ],
)
def test_other_ways(words: tuple[Word, ...], outcome: str) -> None:
    update = walk(begun(), *words)
    assert (update.state, update.outcome) == ("idle", outcome)


def test_without_rollback_what_serves_badly_is_kept_and_what_cannot_serve_is_not() -> None:
    kept = walk(begun(rollback=False), *GOOD[:5], "failed")
    assert kept.state == "commit"
    assert walk(kept, "committed").outcome == "failed"
    assert walk(begun(rollback=False), *GOOD[:5], "broken").state == "rollback"


@pytest.mark.parametrize("state", get_args(State))
@pytest.mark.parametrize("word", get_args(Word))
def test_every_word_in_every_state_leads_somewhere_or_is_refused(state: State, word: Word) -> None:
    if word in TABLE[state]:
        assert step(at(state), word).state in get_args(State)
    else:
        with pytest.raises(ValueError, match=r"cannot happen"):
            step(at(state), word)


@given(st.lists(st.integers(0, 100), min_size=100, max_size=100), st.booleans())
def test_whatever_happens_it_ends_within_the_bound(choices: list[int], rollback: bool) -> None:
    update = begun(rollback=rollback)
    for choice in choices:
        words = sorted(TABLE[update.state])
        if not words:
            break
        update = step(update, words[choice % len(words)])
    assert update.state == "idle"
    assert update.steps <= MOST_STEPS
    assert update.outcome


def test_going_round_in_circles_is_a_failure_with_a_reason() -> None:
    update = walk(begun(), "accepted")
    while update.state not in ("report", "rollback"):
        update = step(update, "fetched" if update.state == "fetch" else "damaged")
    assert (update.state, update.outcome) == ("report", "failed")
    assert "circles" in update.reason


@pytest.mark.parametrize("state", ["switch", "probation"])
def test_who_dies_too_often_goes_back_also_without_rollback(state: State) -> None:
    update = at(state, rollback=False)
    for number in range(1, MOST_DEATHS):
        update = started(replace(update, served_s=50.0))
        assert (update.state, update.deaths, update.served_s) == (state, number, 0.0)
    update = started(update)
    assert update.state == "rollback"
    assert "died 3 times" in update.reason
    assert update.evidence["deaths"] == "3"


def test_a_clean_reboot_is_no_failure_and_keeps_what_was_served() -> None:
    update = at("probation")
    for _ in range(50):
        update = started(replace(update, clean=True, served_s=40.0))
        assert (update.state, update.deaths, update.served_s, update.clean) == ("probation", 0, 40.0, False)
    assert started(update).deaths == 1, "the clean end counts for one start"


@pytest.mark.parametrize("state", ["check", "fetch", "verify", "staged", "commit", "rollback", "report"])
def test_dying_elsewhere_costs_nothing(state: State) -> None:
    update = at(state)
    for _ in range(100):
        update = started(update)
    assert (update.state, update.steps, update.deaths) == (state, 0, 0)


def test_reasons_and_evidence_are_kept_and_bounded() -> None:
    update = step(at("probation"), "failed", "too slow " * 1000, {f"k{n}": "v" * 9999 for n in range(99)})
    update = walk(update, "restored")
    assert len(update.reason) == 500
    assert len(update.evidence) == 16
    told = report_of(update, "node-7")
    assert (told["outcome"], told["rollout"], told["revision"], told["node"]) == ("rolled back", "spring", 3, "node-7")
    assert len(str(told)) < 16 * 600 + 2000


def test_places_are_even_stable_and_other_ones_in_the_next_rollout() -> None:
    nodes = [f"node-{number}" for number in range(4000)]
    part = [node for node in nodes if place(node, "spring") < 10]
    assert 320 < len(part) < 480
    assert all(place(node, "spring") < 50 for node in part), "who is in at 10 % is in at 50 %"
    other = [node for node in part if place(node, "summer") < 10]
    assert len(other) < 100, "not always the same ones go first"
    assert all(0 <= place(node, "x") < 100 for node in nodes)


def test_rings_and_percent_decide_who_takes_part() -> None:
    everybody = replace_rollout(percent=100.0)
    assert takes_part(everybody, "a", "")
    assert not takes_part(replace_rollout(percent=0.0), "a", "")
    ringed = replace_rollout(rings=("canary", "lab"))
    assert takes_part(ringed, "a", "lab")
    assert not takes_part(ringed, "a", "street")
    assert not takes_part(ringed, "a", "")


@pytest.mark.parametrize(
    ("window", "minute", "is_open"),
    [
        ((), 0, True),
        (((120, 240),), 119, False),
        (((120, 240),), 120, True),
        (((120, 240),), 240, False),
        (((1380, 60),), 1400, True),
        (((1380, 60),), 59, True),
        (((1380, 60),), 60, False),
        (((0, 1), (600, 601)), 600, True),
    ],
)
def test_windows(window: tuple[tuple[int, int], ...], minute: int, is_open: bool) -> None:
    assert window_open(replace_rollout(window=window), minute) == is_open


def test_what_counts_against_a_rollout_is_the_same_for_node_and_manager() -> None:
    assert BAD == progress.BAD
    told = progress.read(msgspec.json.encode(report_of(walk(begun(), "refused"), "node-7")))
    assert told is not None
    assert (told.node, told.rollout, told.revision, told.outcome) == ("node-7", "spring", 3, "rejected")
