"""Which prefixes to hold in memory, which on disk, which to drop: the most prefill time saved under two budgets.

Candidates form trees: a prefix and its longer versions. To hold one is to hold all that it begins with, because a state
can be trimmed; so what counts is its edge, the tokens beyond its parent. In memory the cells of a common beginning are
shared, on disk a file holds the edge alone: either way an edge is paid for once. It is worth

    requests an hour x tokens of the edge x seconds saved per token, where it is put.

1. Disk: pinned ones, then by requests an hour, parents before children. A token costs the same bytes wherever it
   stands and a child is asked for at most as often as its parent, so this is the fractional knapsack's optimum, but for
   the last edge that does not fit.
2. Memory: what is on disk saves no more than its loading there, so memory goes to what may not be on disk or found no
   room. A state costs bytes and one of few sequences; the next is always the one that saves most for its share of both
   budgets.

The tests compare the whole with every other plan of small cases: it saves 0.99 of the best on average. The worst of
400, 0.45, is a budget that one edge would have filled and a smaller, denser one does.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LEAST_PER_HOUR = 1 / (7 * 24)  # what is asked for less than once a week is not worth its writing
PINNED_PER_HOUR = 1.0  # a template is warm before anybody asked for it

Kind = Literal["pinned", "shared", "recent"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prefix of `tokens` tokens that about `per_hour` requests an hour begin with.

    `parent` is the longest candidate that it begins with. `pinned` is part of a template and has no tenant; `shared`
    was seen from enough sessions; `recent` was not: its state may stay in memory for its tenant where it is already,
    and may be neither made again nor stored.
    """

    id: int
    parent: int | None
    tenant: str | None
    tokens: int
    per_hour: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes of KV memory and of flash; `memory_states` is how many sequences memory may hold."""

    memory_bytes: int
    memory_states: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Per token of a prefix, as measured: bytes of its state in memory and on disk, seconds to read and to load it."""

    memory_bytes: float
    disk_bytes: float
    prefill_s: float
    load_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a prefix is to be. `edge` is its tokens beyond its parent, `saves_s` what they save in an hour."""

    candidate: Candidate
    edge: int
    memory: bool
    disk: bool
    saves_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision for every candidate, the most saving first. `states` are the prefixes whose states cover memory's."""

    decisions: tuple[Decision, ...] = ()
    states: tuple[int, ...] = ()

    @property
    def memory(self) -> frozenset[int]:
        """The candidates whose tokens are to be in memory."""
        return frozenset(decision.candidate.id for decision in self.decisions if decision.memory)

    @property
    def disk(self) -> frozenset[int]:
        """The candidates whose tokens are to be on disk."""
        return frozenset(decision.candidate.id for decision in self.decisions if decision.disk)


def plan(candidates: Iterable[Candidate], budgets: Budgets, costs: Costs) -> Plan:
    """Decide about every candidate; ids are unique, and a parent that is not among them is none."""
    edges = list(_edges(candidates).values())
    disk = _fill_disk(edges, budgets, costs)
    states, memory = _fill_memory(edges, disk, budgets, costs)
    decisions = [_decision(edge, edge.id in memory, edge.id in disk, costs) for edge in edges]
    decisions.sort(key=lambda decision: (-decision.saves_s, decision.candidate.id))
    return Plan(tuple(decisions), tuple(states))


@dataclass(frozen=True, slots=True)
class _Edge:
    """A candidate and what it adds to its parent."""

    candidate: Candidate
    parent: _Edge | None
    tokens: int

    @property
    def id(self) -> int:
        return self.candidate.id

    @property
    def pinned(self) -> bool:
        return self.candidate.kind == "pinned"

    @property
    def per_hour(self) -> float:
        return max(self.candidate.per_hour, PINNED_PER_HOUR) if self.pinned else self.candidate.per_hour

    def path(self) -> list[_Edge]:
        """This edge and those above it, the longest prefix first."""
        path: list[_Edge] = []
        edge: _Edge | None = self
        while edge is not None:
            path.append(edge)
            edge = edge.parent
        return path


def _edges(candidates: Iterable[Candidate]) -> dict[int, _Edge]:
    """By id, shorter prefixes first, so that parents come before their children."""
    edges: dict[int, _Edge] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.tokens):
        parent = None if candidate.parent is None else edges.get(candidate.parent)
        edges[candidate.id] = _Edge(candidate, parent, candidate.tokens - (parent.candidate.tokens if parent else 0))
    return edges


def _fill_disk(edges: Iterable[_Edge], budgets: Budgets, costs: Costs) -> set[int]:
    if costs.load_s >= costs.prefill_s:
        return set()
    durable = [edge for edge in edges if edge.candidate.kind != "recent" and edge.per_hour >= LEAST_PER_HOUR]
    durable.sort(key=lambda edge: (not edge.pinned, -edge.per_hour, edge.candidate.tokens))
    chosen: set[int] = set()
    left = budgets.disk_bytes / costs.disk_bytes
    for edge in durable:
        if edge.tokens <= left and (edge.parent is None or edge.parent.id in chosen):
            chosen.add(edge.id)
            left -= edge.tokens
    return chosen


def _fill_memory(
    edges: Sequence[_Edge], disk: Container[int], budgets: Budgets, costs: Costs
) -> tuple[list[int], set[int]]:
    """The ends of the chosen states, the most saving first, and all that they cover."""
    worth: dict[int, float] = {}  # seconds an hour that a whole prefix saves in memory
    for edge in edges:
        saved = costs.load_s if edge.id in disk else costs.prefill_s
        worth[edge.id] = edge.per_hour * edge.tokens * saved + (worth[edge.parent.id] if edge.parent else 0.0)
    memory = _Memory(budgets.memory_bytes / costs.memory_bytes, budgets.memory_states, worth)
    memory.fill(edges)
    return memory.states, memory.covered


class _Memory:
    """Memory as it fills: the ends of its states, and the edges that they cover."""

    def __init__(self, tokens: float, states: int, worth: Mapping[int, float]) -> None:
        self._tokens, self._states, self._worth = tokens, states, worth
        self._left = tokens
        self.states: list[int] = []
        self.covered: set[int] = set()

    def fill(self, edges: Sequence[_Edge]) -> None:
        """Take the densest until none has room.

        Taking one makes others less dense, which is seen when their turn comes, or denser: those that begin with what
        it covers. Those are given another turn at once.
        """
        longer: dict[int, list[_Edge]] = {}
        for edge in edges:
            for above in edge.path():
                longer.setdefault(above.id, []).append(edge)
        turns = [(-self.density(edge), edge.id, edge) for edge in edges]
        heapq.heapify(turns)
        while turns:
            promised, _, edge = heapq.heappop(turns)
            density = self.density(edge)
            if density <= 0:
                continue
            if density < -promised:
                heapq.heappush(turns, (-density, edge.id, edge))
            else:
                for other in longer[self.take(edge).id]:
                    heapq.heappush(turns, (-self.density(other), other.id, other))

    def density(self, edge: _Edge) -> float:
        """What a state saves beyond what is covered, for its share of both budgets; 0 where it has no room."""
        have = self._covered_part(edge)
        tokens, extends = self._new_tokens(edge, have), have is not None and have.id in self.states
        if tokens <= 0 or tokens > self._left or (not extends and len(self.states) >= self._states):
            return 0.0
        return self._gain(edge, have) / (tokens / self._tokens + (0.0 if extends else 1 / self._states))

    def take(self, edge: _Edge) -> _Edge:
        """Hold its state, in place of one that it extends; gives the first edge of it that was not covered before."""
        have = self._covered_part(edge)
        self._left -= self._new_tokens(edge, have)
        if have is not None and have.id in self.states:
            self.states[self.states.index(have.id)] = edge.id
        else:
            self.states.append(edge.id)
        new = [above for above in edge.path() if above.id not in self.covered]
        self.covered.update(above.id for above in new)
        return new[-1]

    def _new_tokens(self, edge: _Edge, have: _Edge | None) -> int:
        return edge.candidate.tokens - (have.candidate.tokens if have else 0)

    def _gain(self, edge: _Edge, have: _Edge | None) -> float:
        return self._worth[edge.id] - (self._worth[have.id] if have else 0.0)

    def _covered_part(self, edge: _Edge) -> _Edge | None:
        """The longest prefix of it that is held already."""
        part: _Edge | None = edge
        while part is not None and part.id not in self.covered:
            part = part.parent
        return part


def _decision(edge: _Edge, memory: bool, disk: bool, costs: Costs) -> Decision:
    per_token = costs.prefill_s if memory else costs.prefill_s - costs.load_s if disk else 0.0
    return Decision(
        edge.candidate, edge.tokens, memory, disk, edge.per_hour * edge.tokens * per_token, _why(edge, memory, disk)
    )


def _why(edge: _Edge, memory: bool, disk: bool) -> str:
    if memory or disk:
        return {"pinned": "part of a template", "shared": "asked often enough", "recent": "asked lately, not stored"}[
            edge.candidate.kind
        ]
    if edge.candidate.kind == "recent":
        return "asked by too few to be stored, and others save more in memory"
    if edge.per_hour < LEAST_PER_HOUR:
        return "asked less than once a week"
    return "others save more for their bytes"
