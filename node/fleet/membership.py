"""What a fleet is to a node that belongs to one: who is asked what to be, who is told, and who this node is."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from node.fleet.directive import Rollout
from node.fleet.profile import Profile

Report = Callable[[Mapping[str, object]], Awaitable[object]]


class Directives(Protocol):
    """What a manager wants."""

    @property
    def rollouts(self) -> Sequence[Rollout]: ...


class Manager(Protocol):
    """The fleet's repository, believed only as far as it is signed (`trust`), and its bytes (`fetch`)."""

    async def refresh(self) -> Directives:
        """Look; raises NodeError, and then what was found before still holds."""

    async def profile(self, rollout: Rollout) -> Profile:
        """The profile that a rollout chooses; raises NodeError."""

    async def fetch(self, profile: Profile) -> None:
        """Put the profile's model file in place, or mend it; raises NodeError."""

    async def tidy(self, keep: Collection[Profile]) -> None:
        """Remove what none of these profiles needs any more."""


@dataclass(frozen=True, slots=True)
class Clock:
    """`now` never goes back; `uptime` counts from anywhere; `minute` is of the local day; `dice` is from 0 up to 1."""

    now: Callable[[], float]
    uptime: Callable[[], float]
    minute: Callable[[], int]
    dice: Callable[[], float] = random.random


def _minute_of(now: float) -> int:
    local = time.localtime(now)
    return local.tm_hour * 60 + local.tm_min


def wall(least: Callable[[], float], system: Callable[[], float] = time.time) -> Clock:
    """The wall clock, except where it is behind what is surely past: many a machine begins in 1970."""

    def now() -> float:
        return max(system(), least())

    return Clock(now, time.monotonic, lambda: _minute_of(now()))


WALL: Final = wall(lambda: 0.0)


@dataclass(frozen=True, slots=True)
class Membership:
    """Which node this is: its id, its ring, and how often it looks, in seconds."""

    node: str = ""
    ring: str = ""
    poll_s: float = 3600.0


ALONE: Final = Membership()
