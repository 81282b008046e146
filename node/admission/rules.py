"""How the queue decides, as one value, and what that promises; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from node.admission.score import CLASSES, Score, Weights
from node.admission.slots import AGED_SHARE, SMALL
from node.generation import LEVELS, Level

AGED_EVERY = 8  # of so many starts, one may go to a request that passes a higher level by its age; see `queue`


@dataclass(frozen=True, slots=True)
class Rules:
    """ValueError if absurd. `preempt` is the lowest level that may take others' slots: it and those above are urgent.

    Each urgent request that runs takes `displaces` slots from the levels below: streams beside it make it slower, and
    the slower it is, the fewer slots the next urgent one finds. `ageing_s` of waiting outweigh one level; `patience` is
    the longest predicted wait that a newcomer is let in for, in its level's maximum waits, and `urgent_patience` the
    same for urgent ones: under overload each that waits too long makes the next one late, too. `max_waiting` and
    `max_bytes` are the room to wait.
    """

    policy: Literal["levels", "fifo"] = "levels"
    weights: Weights = field(default_factory=Weights)
    ageing_s: float = 30.0
    patience: float = 25.0
    urgent_patience: float = 2.0
    preempt: Level | Literal["never"] = "interactive"
    displaces: int = 3
    max_waiting: int = 64
    max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        Score(self.weights, self.ageing_s)
        if not min(self.patience, self.urgent_patience) >= 1:
            least = min(self.patience, self.urgent_patience)
            raise ValueError(f"The queue's patience must be at least 1 maximum wait, not {least:g}.")
        if self.displaces < 1:
            raise ValueError(f"A request takes at least 1 slot, not {self.displaces}.")
        if self.max_waiting < 0 or self.max_bytes < 0:
            raise ValueError("The queue's room to wait must not be negative.")

    @property
    def urgent(self) -> int:
        """The lowest rank that may take others' slots; -1 where none may."""
        return -1 if self.policy == "fifo" or self.preempt == "never" else LEVELS.index(self.preempt)

    def patience_s(self, level: Level) -> float:
        """The longest predicted wait that a newcomer is let in for."""
        promised = CLASSES[level].max_wait_s
        times = self.urgent_patience if LEVELS.index(level) <= self.urgent else self.patience
        return math.inf if promised is None else times * promised


def wait_bound_s(rules: Rules, level: Level, slots: int, longest_s: float, ahead: int | None = None) -> float:
    """The longest that an accepted request can wait, whatever else is asked, when none holds a slot over `longest_s`.

    From the first term on, no newcomer of any level has a better place. What has one then is what waits already, or
    runs and is parked again: `ahead` requests, at most `max_waiting` + 2 `slots`. They go by age one after the other,
    on the slots that may be held so, one in `ageing_s` on each; where there are less than SMALL, by every AGED_EVERYth
    start, of which there is at least one in `longest_s`. Requests that wait for their own readers do not count.
    """
    score = Score(rules.weights, rules.ageing_s)
    lead = score.lead_s("critical") - score.lead_s(level) + score.head_start_s("critical", 1, 1)
    turns = (rules.max_waiting + 2 * slots if ahead is None else ahead) + 1
    if rules.policy == "fifo":
        return math.ceil(turns / slots) * longest_s
    if slots < SMALL:
        return lead + AGED_EVERY * turns * longest_s
    return lead + math.ceil(turns / max(1, slots // AGED_SHARE)) * max(longest_s, rules.ageing_s)
