"""What a fleet is to a node that belongs to one: who is asked what to be, who is told, and who this node is."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Clock:
    """`now` never goes back; `uptime` counts from anywhere; `minute` is of the local day; `dice` is from 0 up to 1."""

    now: Callable[[], float]
    uptime: Callable[[], float]
    minute: Callable[[], int]
    dice: Callable[[], float] = random.random


def _local_minute() -> int:
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min


WALL: Final = Clock(time.time, time.monotonic, _local_minute)


@dataclass(frozen=True, slots=True)
class Membership:
    """Which node this is: its id, its ring, and how often it looks, in seconds."""

    node: str = ""
    ring: str = ""
    poll_s: float = 3600.0


ALONE: Final = Membership()
