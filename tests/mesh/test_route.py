"""Who answers: costs, brakes and reasons."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from node.mesh.route import LATER, LOCAL, Decision, Place, Policy, Task, cost_s, decide

HERE = Place(LOCAL, "local", prefill_s=0.001, decode_s=0.02)
PEER = Place("peer/a", "peer", prefill_s=0.001, decode_s=0.02, trip_s=0.005)
CLOUD = Place("cloud/x", "cloud", decode_s=0.01, trip_s=0.8)
TASK = Task(100, 200)
POLICY = Policy()


def choose(*places: Place, task: Task = TASK, policy: Policy = POLICY, seed: int = 1) -> Decision:
    return decide(task, places, policy, random.Random(seed).random)


def test_a_node_alone_answers_itself() -> None:
    assert choose(HERE) == Decision(LOCAL, "alone", pytest.approx(0.1), (), {})


def test_an_idle_node_answers_itself_and_knows_who_could_take_over() -> None:
    found = choose(HERE, PEER, CLOUD)
    assert (found.place, found.why, found.others) == (LOCAL, "fastest", ("peer/a", "cloud/x"))


CASES = [
    # here, peer, cloud: what is different; the place and why
    ({"wait_s": 1.0}, {}, {}, "peer/a", "busy"),
    ({"wait_s": 1.0}, {"wait_s": 0.95}, {}, LOCAL, "fastest"),
    ({"wait_s": 9.0}, {"wait_s": 8.0}, {}, "cloud/x", "busy"),
    ({}, {"warm": 1.0}, {}, LOCAL, "fastest"),
    ({"prefill_s": 0.01}, {"prefill_s": 0.01, "warm": 0.9}, {}, "peer/a", "warm"),
    ({"saves_power": True}, {}, {}, "peer/a", "power"),
    ({"saves_power": True}, {"saves_power": True}, {}, LOCAL, "fastest"),
    ({"rung": 3}, {}, {}, "peer/a", "fastest"),
    ({"wait_s": 1.0}, {"rung": 3}, {}, LOCAL, "fastest"),
    ({"wait_s": 1.0}, {"excess_s": 2.0}, {}, LOCAL, "fastest"),
    ({"decode_s": 0.5}, {}, {}, "cloud/x", "fastest"),
    ({"blocked": "draining"}, {}, {}, "peer/a", "overflow"),
    ({"blocked": "full"}, {"blocked": "it has another model"}, {}, "cloud/x", "overflow"),
    ({"blocked": "full"}, {"blocked": "silent"}, {"blocked": "never"}, LATER, "nobody"),
]


@pytest.mark.parametrize(("here", "peer", "cloud", "place", "why"), CASES)
def test_the_cheapest_place_answers_for_a_reason(
    here: dict[str, object], peer: dict[str, object], cloud: dict[str, object], place: str, why: str
) -> None:
    places = (replace(HERE, **here), replace(PEER, decode_s=0.02, **peer), replace(CLOUD, **cloud))  # type: ignore[arg-type]
    if here.get("decode_s"):
        places = (places[0], replace(places[1], blocked="gone"), places[2])
    found = choose(*places)
    assert (found.place, found.why) == (place, why)
    assert set(found.others) | {found.place} | set(found.blocked or {}) >= {p.name for p in places} - {LATER}
    assert not set(found.others) & set(found.blocked or {})


def test_a_blocked_place_is_told_with_its_reason() -> None:
    found = choose(replace(HERE, blocked="full"), replace(PEER, blocked="silent"))
    assert found.blocked == {LOCAL: "full", "peer/a": "silent"}


def test_a_session_stays_where_it_was_until_another_place_is_clearly_better() -> None:
    there = replace(TASK, last="peer/a")
    assert choose(HERE, PEER, task=there, policy=Policy(peer_s=0.4)).place == LOCAL, "a clear difference"
    even = Policy(peer_s=0.0)
    assert choose(HERE, PEER, policy=even).place == LOCAL
    stays = choose(HERE, PEER, task=there, policy=even)
    assert (stays.place, stays.why) == ("peer/a", "stays")
    assert choose(HERE, replace(PEER, wait_s=0.5), task=there, policy=even).place == LOCAL


def test_figures_that_waver_move_nobody() -> None:
    chance, last, moves = random.Random(3), "", 0
    for _ in range(500):
        here = replace(HERE, wait_s=0.3 + chance.uniform(-0.03, 0.03))
        peer = replace(PEER, wait_s=0.2 + chance.uniform(-0.03, 0.03))
        place = choose(here, peer, task=replace(TASK, last=last)).place
        moves += place != last
        last = place
    assert moves == 1


def test_a_metered_cloud_is_the_last_resort() -> None:
    metered = Policy(metered=True)
    busy = replace(HERE, wait_s=3000.0)
    assert choose(busy, CLOUD).place == "cloud/x"
    assert choose(busy, CLOUD, policy=metered).place == LOCAL
    assert choose(replace(busy, blocked="full"), CLOUD, policy=metered).place == "cloud/x"


def test_of_many_neighbours_two_are_drawn_so_that_the_best_is_not_buried() -> None:
    peers = [replace(PEER, name=f"peer/{number}", wait_s=number / 1000) for number in range(50)]
    busy = replace(HERE, wait_s=10.0)
    chosen = {choose(busy, *peers, seed=seed).place for seed in range(300)}
    assert len(chosen) > 20
    best = sum(choose(busy, *peers, seed=seed).place == "peer/0" for seed in range(300))
    assert best < 60, "drawn in about 2 of 50"
    assert LOCAL not in chosen


def test_the_warmest_of_many_and_the_last_one_are_always_looked_at() -> None:
    slow = Task(4000, 200)
    peers = [replace(PEER, name=f"peer/{number}") for number in range(50)]
    peers[17] = replace(peers[17], warm=0.9)
    busy = replace(HERE, wait_s=10.0)
    assert {choose(busy, *peers, task=slow, seed=seed).place for seed in range(50)} == {"peer/17"}
    peers[17] = replace(peers[17], warm=0.0)
    last = replace(slow, last="peer/31")
    assert {choose(busy, *peers, task=last, seed=seed).place for seed in range(50)} == {"peer/31"}


def test_a_first_sentence_counts_besides_the_first_token() -> None:
    assert cost_s(TASK, HERE, Policy()) == pytest.approx(0.1 + 16 * 0.02)
    assert cost_s(Task(100, 2), HERE, Policy()) == pytest.approx(0.1 + 2 * 0.02)
    assert cost_s(TASK, PEER, Policy(peer_s=0.3)) == pytest.approx(0.1 + 0.005 + 0.3 + 16 * 0.02)
