"""The plan against every other plan on small cases, and the rules that it keeps on any."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.prewarm.plan import LEAST_PER_HOUR, Budgets, Candidate, Costs, Decision, Kind, Plan, plan

COSTS = Costs(memory_bytes=10.0, disk_bytes=10.0, prefill_s=0.001, load_s=0.00001)
PLENTY = Budgets(memory_bytes=10**9, memory_states=100, disk_bytes=10**9)


def candidate(
    id: int, tokens: int = 100, per_hour: float = 1.0, parent: int | None = None, kind: Kind = "shared"
) -> Candidate:
    return Candidate(id, parent, None if kind == "pinned" else "", tokens, per_hour, kind)


def of(found: Plan, id: int) -> Decision:
    return next(decision for decision in found.decisions if decision.candidate.id == id)


def test_nothing_gives_nothing() -> None:
    assert plan([], PLENTY, COSTS) == Plan()


def test_with_plenty_of_room_everything_is_on_disk_and_in_memory() -> None:
    found = plan([candidate(1), candidate(2, 150, 0.5, parent=1), candidate(3)], PLENTY, COSTS)
    assert found.disk == found.memory == {1, 2, 3}
    assert set(found.states) == {2, 3}, "a longer state serves what it begins with"
    assert [decision.candidate.id for decision in found.decisions] == [1, 3, 2]


def test_numbers_are_those_of_the_edge() -> None:
    found = plan([candidate(1), candidate(2, 150, 0.5, parent=1)], Budgets(0, 0, 10**9), COSTS)
    assert of(found, 2).edge == 50
    assert of(found, 2).saves_s == pytest.approx(0.5 * 50 * (0.001 - 0.00001))
    assert of(found, 1).saves_s == pytest.approx(1.0 * 100 * (0.001 - 0.00001))


def test_disk_goes_to_what_is_asked_most_for_its_bytes() -> None:
    found = plan(
        [candidate(1, 100, 1.0), candidate(2, 100, 3.0), candidate(3, 100, 2.0)], Budgets(0, 0, 200 * 10), COSTS
    )
    assert found.disk == {2, 3}
    assert of(found, 1).why == "others save more for their bytes"


def test_a_longer_prefix_pays_only_for_its_own_part() -> None:
    found = plan([candidate(1, 100, 2.0), candidate(2, 150, 1.0, parent=1)], Budgets(0, 0, 150 * 10), COSTS)
    assert found.disk == {1, 2}


def test_no_child_without_its_parent() -> None:
    found = plan([candidate(1, 100, 2.0), candidate(2, 110, 1.0, parent=1)], Budgets(0, 0, 50 * 10), COSTS)
    assert found.disk == frozenset()


def test_templates_come_first_however_seldom_they_were_asked() -> None:
    found = plan([candidate(1, 100, 9.0), candidate(2, 100, 0.0, kind="pinned")], Budgets(0, 0, 100 * 10), COSTS)
    assert found.disk == {2}
    assert of(found, 2).saves_s > 0


def test_what_too_few_asked_is_never_on_disk_and_may_be_in_memory() -> None:
    found = plan([candidate(1), candidate(2, 200, 0.9, parent=1, kind="recent")], PLENTY, COSTS)
    assert found.disk == {1}
    assert found.memory == {1, 2}
    assert of(found, 2).why == "asked lately, not stored"


def test_memory_goes_to_what_the_disk_does_not_have() -> None:
    found = plan(
        [candidate(1, 100, 20.0), candidate(2, 100, 1.0, kind="recent")], Budgets(100 * 10, 1, 100 * 10), COSTS
    )
    assert (found.disk, found.memory) == ({1}, {2})


def test_without_a_disk_memory_goes_to_what_is_asked_most() -> None:
    found = plan([candidate(1, 100, 20.0), candidate(2, 100, 1.0, kind="recent")], Budgets(10**9, 1, 0), COSTS)
    assert (found.disk, found.memory) == (frozenset(), {1})


def test_where_loading_takes_longer_than_reading_nothing_is_on_disk() -> None:
    slow = Costs(10.0, 10.0, prefill_s=0.001, load_s=0.002)
    found = plan([candidate(1)], PLENTY, slow)
    assert (found.disk, found.memory) == (frozenset(), {1})


def test_what_is_asked_once_in_a_blue_moon_is_not_written() -> None:
    found = plan([candidate(1, per_hour=LEAST_PER_HOUR / 2)], Budgets(0, 0, 10**9), COSTS)
    assert found.disk == frozenset()
    assert of(found, 1).why == "asked less than once a week"


def test_a_parent_that_is_no_candidate_is_none() -> None:
    found = plan([candidate(1, 100, parent=99)], PLENTY, COSTS)
    assert of(found, 1).edge == 100


def test_a_deep_line_of_prefixes_is_one_state() -> None:
    line = [candidate(n, n, 2.0 - n / 10_000, parent=n - 1 or None) for n in range(1, 65)]
    found = plan(line, PLENTY, COSTS)
    assert len(found.disk) == len(found.memory) == 64
    assert len(found.states) == 1


# Against brute force.


def drawn(seed: int) -> tuple[list[Candidate], Budgets, Costs]:
    rng = random.Random(seed)
    found: list[Candidate] = []
    for id in range(1, rng.randint(2, 6) + 1):
        above = rng.choice([None, *found])
        tokens = (above.tokens if above else 0) + rng.choice([10, 40, 100, 300, 700])
        rate = (above.per_hour if above else 20.0) * rng.uniform(0.05, 1)
        recent = above is not None and above.kind == "recent"
        kind: Kind = "recent" if recent or rng.random() < 0.4 else "shared"
        found.append(Candidate(id, above.id if above else None, "", tokens, rate, kind))
    whole = sum(c.tokens for c in found) * 10
    budgets = Budgets(int(whole * rng.uniform(0.1, 0.6)), rng.randint(1, 3), int(whole * rng.uniform(0, 0.6)))
    return found, budgets, Costs(10, 10, 0.001, rng.choice([0.000005, 0.0001, 0.0005]))


def closed(candidates: list[Candidate]) -> Iterator[frozenset[int]]:
    """Every set of candidates that has, with each, the prefixes that it begins with."""
    parents = {c.id: c.parent for c in candidates}
    for size in range(len(candidates) + 1):
        for ids in itertools.combinations(parents, size):
            chosen = frozenset(ids)
            if all(parents[id] in chosen or parents[id] is None for id in chosen):
                yield chosen


def edges(candidates: list[Candidate]) -> dict[int, int]:
    tokens = {c.id: c.tokens for c in candidates}
    return {c.id: c.tokens - (tokens[c.parent] if c.parent is not None else 0) for c in candidates}


def leaves(candidates: list[Candidate], chosen: frozenset[int]) -> int:
    return len(chosen - {c.parent for c in candidates if c.id in chosen})


def saved(candidates: list[Candidate], costs: Costs, memory: frozenset[int], disk: frozenset[int]) -> float:
    edge = edges(candidates)
    return sum(
        c.per_hour * edge[c.id] * (costs.prefill_s - (0 if c.id in memory else costs.load_s))
        for c in candidates
        if c.id in memory or c.id in disk
    )


def fitting(
    candidates: list[Candidate], budgets: Budgets, costs: Costs
) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """What may be in memory, and what may be on disk."""
    edge = edges(candidates)
    durable = {c.id for c in candidates if c.kind != "recent"}
    every = list(closed(candidates))

    def size(chosen: frozenset[int]) -> float:
        return sum(edge[id] for id in chosen) * 10

    memory = [
        chosen
        for chosen in every
        if size(chosen) <= budgets.memory_bytes and leaves(candidates, chosen) <= budgets.memory_states
    ]
    return memory, [chosen for chosen in every if chosen <= durable and size(chosen) <= budgets.disk_bytes]


def ratio(seed: int) -> float:
    candidates, budgets, costs = drawn(seed)
    found = plan(candidates, budgets, costs)
    memories, disks = fitting(candidates, budgets, costs)
    assert found.memory in memories
    assert found.disk in disks
    best = max(saved(candidates, costs, memory, disk) for memory in memories for disk in disks)
    own = sum(decision.saves_s for decision in found.decisions)
    assert own == pytest.approx(saved(candidates, costs, found.memory, found.disk))
    return own / best if best else 1.0


def test_it_is_near_the_best_of_all_plans() -> None:
    """The ratios that the module's head states."""
    ratios = [ratio(seed) for seed in range(400)]
    assert min(ratios) >= 0.44
    assert statistics.mean(ratios) >= 0.985


KINDS = st.sampled_from(["pinned", "shared", "recent"])


@given(
    st.lists(st.tuples(st.integers(-1, 30), st.integers(1, 500), st.floats(0, 100), KINDS), max_size=25),
    st.integers(0, 20_000),
    st.integers(0, 4),
    st.integers(0, 20_000),
)
def test_any_plan_keeps_its_budgets(
    drawn: list[tuple[int, int, float, Kind]], memory: int, states: int, disk: int
) -> None:
    candidates: list[Candidate] = []
    for number, (above, tokens, rate, kind) in enumerate(drawn):
        parent = candidates[above] if 0 <= above < len(candidates) else None
        below = parent.tokens if parent else 0
        id = parent.id if parent else None
        candidates.append(Candidate(number + 1, id, "", below + tokens, rate, kind))
    found = plan(candidates, Budgets(memory, states, disk), COSTS)
    edge = edges(candidates)
    assert len(found.decisions) == len(candidates)
    assert sum(edge[id] for id in found.memory) * 10 <= memory
    assert sum(edge[id] for id in found.disk) * 10 <= disk
    assert leaves(candidates, found.memory) == len(found.states) <= states
    parents = {c.id: c.parent for c in candidates}
    for chosen in (found.memory, found.disk):
        assert all(parents[id] is None or parents[id] in chosen for id in chosen)
    assert not {c.id for c in candidates if c.kind == "recent"} & found.disk
    assert all(decision.saves_s >= 0 and decision.why for decision in found.decisions)
