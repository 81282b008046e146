"""Who answers a request: this node, a neighbour, the cloud, or nobody yet; pure, numbers in and a reason out.

Each place that could answer is given a cost in seconds: the predicted time to its first sentence (its way, its queue,
the part of the prompt that is not warm there, a few tokens), corrected by how wrong such predictions were before, plus
what the policy thinks it is worth to leave it alone. The cheapest one answers, with two brakes:

- Hysteresis: the place that this session had last, else this node, keeps a request unless another one is clearly
  cheaper. So figures that waver do not send a conversation to and fro, away from where it is warm.
- Two choices: of many neighbours two are drawn and the better one is taken, besides the warmest and the last one. All
  nodes see the same figures, some seconds old; if all of them took the best, they would bury it.

What is blocked has a reason in words, and is not asked. When everything is blocked the answer is "later".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

LOCAL: Final = "local"
LATER: Final = "later"
MANY: Final = 4  # neighbours beyond which two are drawn
SENTENCE: Final = 16  # tokens

Kind = Literal["local", "peer", "cloud"]
Why = Literal["alone", "fastest", "stays", "warm", "busy", "power", "overflow", "nobody"]

_LEAST_GAIN_S, _LEAST_GAIN = 0.05, 0.2  # what another place must save: so many seconds, and such a share
_STRESS_S = 0.5  # a rung of the ladder


@dataclass(frozen=True, slots=True)
class Task:
    """What matters of a request; `last` is the place that its session had before, "" where none is known."""

    prompt_tokens: int
    max_tokens: int
    last: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere that could answer. Seconds; `warm` is the share of the prompt that need not be read there.

    `excess_s` is by how much it was slower than predicted lately. `blocked` is why it cannot be asked now.
    """

    name: str
    kind: Kind
    wait_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    trip_s: float = 0.0
    warm: float = 0.0
    excess_s: float = 0.0
    rung: int = 0
    saves_power: bool = False  # it is on battery, or hot
    blocked: str = ""

    def first_token_s(self, task: Task) -> float:
        """When its first token is expected."""
        return self.trip_s + self.wait_s + self.prefill_s * task.prompt_tokens * (1 - self.warm) + self.excess_s


@dataclass(frozen=True, slots=True)
class Policy:
    """What it is worth, in seconds of waiting, not to ask somebody else, and not to use a battery.

    A metered cloud is only asked where nobody else can answer.
    """

    peer_s: float = 0.1
    cloud_s: float = 2.0
    power_s: float = 0.5
    metered: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`place` answers, for the reason `why`; `others` may take over, the best first. `blocked` says who cannot."""

    place: str
    why: Why
    first_token_s: float = 0.0
    others: tuple[str, ...] = ()
    blocked: Mapping[str, str] | None = None


def decide(task: Task, places: Sequence[Place], policy: Policy, chance: Callable[[], float]) -> Decision:
    """Who answers; `chance` is drawn evenly from 0 to 1. Names are fresh, and at most one place is local."""
    blocked = {place.name: place.blocked for place in places if place.blocked}
    costs = {place.name: cost_s(task, place, policy) for place in _drawn(task, places, chance) if not place.blocked}
    open_places = {place.name: place for place in places if not place.blocked}
    if not costs:
        return Decision(LATER, "nobody", blocked=blocked)
    ranked = sorted(open_places, key=lambda name: costs.get(name, cost_s(task, open_places[name], policy)))
    best = min(costs, key=lambda name: costs[name])
    incumbent = next((name for name in (task.last, LOCAL) if name in costs), "")
    if incumbent and not _clearly(costs[best], costs[incumbent]):
        best = incumbent
    others = tuple(name for name in ranked if name != best)
    why = _why(best, incumbent, open_places, places)
    return Decision(best, why, open_places[best].first_token_s(task), others, blocked)


def cost_s(task: Task, place: Place, policy: Policy) -> float:
    """What it costs to have it answered there, in seconds."""
    worth = place.first_token_s(task) + min(SENTENCE, task.max_tokens) * place.decode_s
    if place.kind == "peer":
        worth += policy.peer_s
    elif place.kind == "cloud":
        worth += policy.cloud_s + (1e6 if policy.metered else 0.0)
    return worth + _STRESS_S * place.rung + (policy.power_s if place.saves_power else 0.0)


def _drawn(task: Task, places: Sequence[Place], chance: Callable[[], float]) -> list[Place]:
    """All places, but of many neighbours only two by chance, the warmest, and the one that the session had."""
    peers = [place for place in places if place.kind == "peer" and not place.blocked]
    if len(peers) <= MANY:
        return list(places)
    first = int(chance() * len(peers)) % len(peers)
    second = (first + 1 + int(chance() * (len(peers) - 1)) % (len(peers) - 1)) % len(peers)
    warmest = max(peers, key=lambda peer: peer.warm)
    kept = {peers[first].name, peers[second].name, task.last}
    if warmest.warm > 0:
        kept.add(warmest.name)
    return [place for place in places if place.kind != "peer" or place.name in kept]


def _clearly(cost: float, than: float) -> bool:
    return cost < than - max(_LEAST_GAIN_S, _LEAST_GAIN * than)


def _why(best: str, incumbent: str, there: Mapping[str, Place], places: Sequence[Place]) -> Why:
    if len(places) == 1:
        return "alone"
    if best == incumbent:
        return "fastest" if best == LOCAL else "stays"
    local = there.get(LOCAL)
    if local is None:
        return "overflow"
    if there[best].warm > local.warm:
        return "warm"
    if local.saves_power and not there[best].saves_power:
        return "power"
    return "busy" if local.wait_s > 0 else "fastest"
