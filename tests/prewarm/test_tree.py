"""The tree against a naive model that keeps every prefix of every prompt; what it promises on privacy and size."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from node.prewarm.demand import HalfLives
from node.prewarm.tree import COMPARED, LATEST, NODE_BYTES, Match, PrefixTree, pack, unpack

HALF = HalfLives()


def tree(quorum: int = 3, max_bytes: int = 1 << 30) -> PrefixTree:
    return PrefixTree(quorum, max_bytes, HALF, since=0.0)


def add(to: PrefixTree, ids: Sequence[int], session: int | None = None, now: float = 0.0, tenant: str = "") -> int:
    return to.add(tenant, pack(ids), session, now).id


def match(of: PrefixTree, ids: Sequence[int], tenant: str = "") -> tuple[int, int]:
    found = of.match(tenant, pack(ids))
    return found.tokens, found.offered


def texts(of: PrefixTree) -> list[list[int]]:
    return sorted(unpack(node.prefix()) for node in of.shared.values())


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_packed_ids_come_back(ids: list[int]) -> None:
    assert unpack(pack(ids)) == ids
    assert len(pack(ids)) == 4 * len(ids)


def test_it_knows_the_longest_beginning_of_any_earlier_prompt() -> None:
    it = tree()
    add(it, [1, 2, 3, 4, 5])
    add(it, [1, 2, 9])
    assert match(it, [1, 2, 3, 4, 7]) == (4, 0)
    assert match(it, [1, 2, 9, 9]) == (3, 0)
    assert match(it, [2, 1]) == (0, 0)
    assert match(it, []) == (0, 0)


def test_an_edge_is_split_where_prompts_part_and_where_one_ends() -> None:
    it = tree()
    add(it, [1, 2, 3, 4])
    assert (it.nodes, it.tokens) == (1, 4)
    add(it, [1, 2, 5])
    assert (it.nodes, it.tokens) == (3, 5)
    add(it, [1])
    assert (it.nodes, it.tokens) == (4, 5)


def test_only_what_enough_sessions_have_in_common_is_shared() -> None:
    it = tree(quorum=3)
    add(it, [1, 2, 3, 10, 11], session=1)
    add(it, [1, 2, 3, 20], session=2)
    assert it.shared == {}
    add(it, [1, 2, 30], session=3)
    assert texts(it) == [[1, 2]], "the third session parted before the others did"
    add(it, [1, 2, 3, 40], session=3)
    assert texts(it) == [[1, 2], [1, 2, 3]]
    assert match(it, [1, 2, 3, 10, 11]) == (5, 3), "what only one said is known, and is not offered"


def test_one_session_however_often_it_asks_is_one() -> None:
    it = tree(quorum=2)
    for _ in range(10):
        add(it, [1, 2, 3], session=7)
    assert it.shared == {}
    add(it, [1, 2], session=8)
    assert texts(it) == [[1, 2]]


def test_unknown_sessions_count_for_nobody() -> None:
    it = tree(quorum=2)
    for _ in range(10):
        add(it, [1, 2, 3])
    assert it.shared == {}
    assert match(it, [1, 2, 3]) == (3, 0)


def test_a_quorum_of_one_shares_everything() -> None:
    it = tree(quorum=1)
    add(it, [1, 2, 3])
    assert texts(it) == [[1, 2, 3]]


def test_tenants_know_nothing_of_each_other() -> None:
    it = tree(quorum=2)
    add(it, [1, 2, 3], session=1, tenant="a")
    add(it, [1, 2, 3], session=2, tenant="b")
    assert it.shared == {}
    assert match(it, [1, 2, 3], tenant="a") == (3, 0)
    assert match(it, [1, 2, 3], tenant="c") == (0, 0)


def test_templates_are_offered_to_every_tenant_and_only_they() -> None:
    it = tree()
    it.pin(pack([1, 2, 3, 4]))
    it.pin(pack([1, 2, 5]))
    add(it, [1, 2, 3, 4, 9], session=1, tenant="a")
    assert match(it, [1, 2, 3, 4, 9], tenant="b") == (4, 4)
    assert match(it, [1, 2, 3, 4, 9], tenant="a") == (5, 4)
    assert sorted(unpack(node.prefix()) for node in it.pinned.values()) == [[1, 2], [1, 2, 3, 4], [1, 2, 5]]


def test_templates_count_who_comes_through_all_of_an_edge() -> None:
    it = tree()
    it.pin(pack([1, 2, 3]))
    add(it, [1, 2, 3, 4], now=5.0)
    add(it, [1, 2], now=6.0)
    (node,) = it.pinned.values()
    assert (node.short, node.last) == (1.0, 5.0)


def test_templates_are_never_expired_nor_evicted() -> None:
    it = tree(max_bytes=1)
    it.pin(pack([1, 2, 3]))
    add(it, [5, 6], session=1, now=1.0)
    assert match(it, [5, 6]) == (0, 0), "there was room for nothing else"
    assert it.expire(1e9, max_age_s=1.0) == 0
    assert match(it, [1, 2, 3]) == (3, 3)


def test_what_is_old_goes_with_what_was_only_on_its_way() -> None:
    it = tree(quorum=1)
    add(it, [1, 2, 3, 4], now=0.0)
    add(it, [1, 2, 9], now=100.0)
    assert it.expire(150.0, max_age_s=100.0) == 1
    assert match(it, [1, 2, 3, 4]) == (2, 2)
    assert it.expire(1000.0, max_age_s=100.0) == 2
    assert (it.nodes, it.tokens) == (0, 0)


def test_the_bound_holds_and_what_is_worth_most_stays() -> None:
    bound = 40 * NODE_BYTES
    it = tree(quorum=2, max_bytes=bound)
    for session in range(5):
        add(it, [9] * 50, session=session, now=float(session))
    for number in range(500):
        add(it, [number + 100, 1, 2, 3], session=number, now=10.0 + number)
        assert it.size <= bound
    assert match(it, [9] * 50) == (50, 50)
    assert match(it, [599, 1, 2, 3]) == (4, 0), "the latest is there"
    assert match(it, [100, 1, 2, 3]) == (0, 0), "the first went"


def test_few_leaves_go_in_the_order_of_their_value() -> None:
    it = tree()
    for number in range(COMPARED):
        for _ in range(1 + number * 5 % 7):
            add(it, [number] * (1 + number % 5), session=number, now=float(number))
    values = sorted(it.value(it.latest[end], 50.0) for end in it.latest)
    while it.nodes:
        it.shrink(it.size - 1, 50.0)
        left = sorted(it.value(it.latest[end], 50.0) for end in it.latest)
        assert left == values[len(values) - len(left) :]


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=60))
def test_everything_but_templates_can_be_evicted(prompts: list[list[int]]) -> None:
    """Whatever was split, extended or evicted before, every leaf has its turn."""
    it = tree(quorum=2)
    it.pin(pack([1, 2]))
    for number, prompt in enumerate(prompts):
        add(it, prompt, session=number % 3, now=float(number))
        if number % 5 == 0:
            it.shrink(it.size * 2 // 3, float(number))
    it.shrink(0, 100.0)
    assert (it.nodes, it.tokens, it.shared, it.latest) == (1, 2, {}, {})


def test_what_is_used_all_the_time_outlives_a_flood() -> None:
    it = tree(quorum=2, max_bytes=300 * NODE_BYTES)
    for number in range(5000):
        add(it, [number + 100, 1, 2, 3], session=number, now=float(number))
        if number % 20 == 0:
            add(it, [9] * 50, session=number, now=float(number))
    assert match(it, [9] * 50) == (50, 50)


def test_the_ends_of_late_prompts_are_found_and_only_so_many() -> None:
    it = tree()
    ends = [add(it, [number, 5]) for number in range(LATEST + 10)]
    assert unpack(it.latest[ends[-1]].prefix()) == [LATEST + 9, 5]
    assert len(it.latest) == LATEST
    assert ends[0] not in it.latest


def test_an_end_keeps_its_id_when_its_edge_is_split() -> None:
    it = tree()
    end = add(it, [1, 2, 3, 4])
    add(it, [1, 2])
    assert unpack(it.latest[end].prefix()) == [1, 2, 3, 4]


def test_what_was_removed_has_no_prefix() -> None:
    it = tree()
    add(it, [1, 2, 3])
    (node,) = it.latest.values()
    it.shrink(0, 1.0)
    with pytest.raises(KeyError):
        node.prefix()


def test_long_edges_are_compared_at_every_length() -> None:
    it, whole = tree(), list(range(1, 700))
    add(it, whole)
    for length in range(1, 700, 13):
        assert match(it, [*whole[:length], 0]) == (length, 0)


def test_two_nodes_that_begin_alike_are_not_restored() -> None:
    it = tree()
    node = it.restore(7, "", None, pack([1, 2]))
    it.restore(3, "", node, pack([1, 5]))
    with pytest.raises(ValueError, match="alike"):
        it.restore(9, "", None, pack([1, 3]))
    with pytest.raises(ValueError, match="alike"):
        it.restore(9, "", None, b"")
    assert match(it, [1, 2, 1, 5]) == (4, 4)
    assert add(it, [8]) == 8, "ids go on after the highest"


def test_the_stated_cost_of_a_node_is_what_it_takes() -> None:
    """Prompts of twelve words behind one of fifty tool lists; allocations counted by CPython itself, not by a clock."""
    it = tree(quorum=3)
    prompts = [
        pack([*range(n % 50, n % 50 + 400), *((n * 7919 + i * 104_729) % 49_000 for i in range(12))])
        for n in range(3000)
    ]
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number, prompt in enumerate(prompts):
        it.add("", prompt, number, float(number))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.6 * it.size <= after - before <= 1.05 * it.size


# Against a naive model.


@dataclass
class Naive:
    """Every prefix of every prompt, with the sessions it was seen from; None is a prefix that is shared."""

    quorum: int
    seen: dict[tuple[str, tuple[int, ...]], tuple[set[int] | None, float]] = field(default_factory=dict)

    def add(self, tenant: str, ids: Sequence[int], session: int | None, now: float) -> None:
        for length in range(1, len(ids) + 1):
            key = (tenant, tuple(ids[:length]))
            sessions, _ = self.seen.get(key, (set(), now))
            if sessions is not None:
                sessions = sessions | ({session} if session is not None else set())
                if len(sessions) >= self.quorum or self.quorum == 1:
                    sessions = None
            self.seen[key] = (sessions, now)

    def match(self, tenant: str, ids: Sequence[int]) -> Match:
        lengths = range(1, len(ids) + 1)
        known = [length for length in lengths if (tenant, tuple(ids[:length])) in self.seen]
        shared = [length for length in known if self.seen[tenant, tuple(ids[:length])][0] is None]
        return Match(max(known, default=0), max(shared, default=0))

    def expire(self, now: float, age: float) -> None:
        self.seen = {key: entry for key, entry in self.seen.items() if now - entry[1] <= age}

    def restart(self) -> None:
        self.seen = {key: entry for key, entry in self.seen.items() if entry[0] is None}

    def keep(self, it: PrefixTree) -> None:
        """Follow the tree in what it evicted; that is judged by value elsewhere."""
        self.seen = {
            (tenant, ids): entry
            for (tenant, ids), entry in self.seen.items()
            if it.match(tenant, pack(ids)).tokens == len(ids)
        }


@dataclass
class Disk:
    """What the history's shell does with a store: rows by id, written as they change, read back at a restart."""

    rows: dict[int, tuple[int, str, bytes, float, float, float]] = field(default_factory=dict)

    def save(self, it: PrefixTree) -> None:
        for id in it.changed:
            node = it.shared.get(id)
            if node is None:
                self.rows.pop(id, None)
                continue
            assert node.parent is not None
            self.rows[id] = (node.parent.id, node.root().tenant or "", node.edge, node.short, node.long, node.last)
        it.changed.clear()

    def load(self, it: PrefixTree) -> None:
        def below(parent: int) -> None:
            for id, (above, tenant, edge, short, long, last) in list(self.rows.items()):
                if above == parent:
                    node = it.restore(id, tenant, it.shared.get(parent), edge)
                    node.short, node.long, node.last = short, long, last
                    below(id)

        below(0)
        assert len(it.shared) == len(self.rows), "every row has its parent"
        it.changed.clear()


PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=9)
TENANT = st.sampled_from(["", "b"])
STEP = st.one_of(
    st.tuples(st.just("add"), TENANT, PROMPT, st.one_of(st.none(), st.integers(0, 4))),
    st.tuples(st.just("add"), TENANT, PROMPT, st.integers(0, 4)),
    st.tuples(st.just("match"), TENANT, PROMPT),
    st.tuples(st.just("expire"), st.floats(0, 20)),
    st.tuples(st.just("evict"), st.floats(0, 1)),
    st.tuples(st.just("save")),
    st.tuples(st.just("restart")),
)


PARTED = [("add", "", ids, None) for ids in ([1, 1], [1, 1, 0], [1, 0])]  # the rest of a split edge begins like it


@settings(max_examples=500)
@example(PARTED, 1)
@given(st.lists(STEP, max_size=40), st.integers(1, 3))
def test_random_programs_agree_with_the_naive_model(program: list[tuple], quorum: int) -> None:  # type: ignore[type-arg]
    it, naive, disk = tree(quorum), Naive(quorum), Disk()
    for number, (verb, *rest) in enumerate(program):
        now = float(number)
        match verb:
            case "add":
                tenant, ids, session = rest
                it.add(tenant, pack(ids), session, now)
                naive.add(tenant, ids, session, now)
            case "match":
                tenant, ids = rest
                assert it.match(tenant, pack(ids)) == naive.match(tenant, ids)
            case "expire":
                it.expire(now, rest[0])
                naive.expire(now, rest[0])
            case "evict":
                it.shrink(int(it.size * rest[0]), now)
                naive.keep(it)
            case "save":
                disk.save(it)
            case "restart":
                disk.save(it)
                it = tree(quorum)
                disk.load(it)
                naive.restart()
        _agree(it, naive)


def _agree(it: PrefixTree, naive: Naive) -> None:
    """Nothing more, nothing less, for every prefix that was ever seen; and the books are right."""
    for tenant, ids in naive.seen:
        assert it.match(tenant, pack(ids)) == naive.match(tenant, ids)
    shared = {(tenant, ids) for (tenant, ids), (sessions, _) in naive.seen.items() if sessions is None}
    offered = set()
    for node in it.shared.values():
        prefix = unpack(node.prefix())
        for length in range(len(prefix) - node.tokens + 1, len(prefix) + 1):
            offered.add((node.root().tenant, tuple(prefix[:length])))
    assert offered == shared
    assert it.tokens == len(naive.seen), "every token of an edge is one prefix"


def test_ids_are_32_bits_here() -> None:
    assert array("i").itemsize == 4
