"""How one node gets from one profile to the next, as a table. What each state does stands in `updater`.

    idle ─ found ─▶ check ─▶ fetch ─▶ verify ─▶ staged ─▶ switch ─▶ probation ─▶ commit ─▶ report ─▶ idle
                      │        ▲ │       │         │          │          │                   ▲
                      │        │ └───────┼─────────┼──────────┼──▶ rollback ─────────────────┤
                      └────────┼─────────┴─────────┴──────────┼──────────────────────────────┘
                               └── damaged (a file that is no longer what was verified)

An `Update` is all that a node must know to go on after any death: it is stored whole, in one transaction, at each step.
Three rules keep a node serving whatever happens. The new profile is in charge in `probation` and `commit` and nowhere
else: in all other states a start serves what is committed. Whoever dies too often there goes back. And each update has
only so many steps in it, so that no failure that was not thought of can make it go round for ever.

Times come in as `now`: seconds of a clock that never goes back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

from node.fleet.directive import Rollout

State = Literal["check", "fetch", "verify", "staged", "switch", "probation", "commit", "rollback", "report", "idle"]
Event = Literal["accepted", "refused", "fetched", "failed", "verified", "damaged", "ready", "switched", "passed"]
Word = Event | Literal["broken", "timed out", "dropped", "committed", "restored", "reported", "died"]
Outcome = Literal["", "committed", "failed", "rejected", "timed out", "rolled back", "dropped"]
Source = Literal["fleet", "local"]

LOCAL: Final = "local"
MOST_STEPS: Final = 28  # of one update; Mender's bound
MOST_DEATHS: Final = 3  # of a node under the new profile; a power cut looks the same, so one is not enough
_WAY_OUT: Final = 3  # steps from anywhere to the end, taken from the bound
_MOST_EVIDENCE: Final = 16
_MOST_WORDS: Final = 500

TABLE: Final[Mapping[State, Mapping[Word, State]]] = {
    "check": {"accepted": "fetch", "refused": "report", "timed out": "report", "dropped": "report"},
    "fetch": {"fetched": "verify", "failed": "report", "timed out": "report", "dropped": "report"},
    "verify": {
        "verified": "staged",
        "damaged": "fetch",
        "failed": "report",
        "timed out": "report",
        "dropped": "report",
    },
    "staged": {"ready": "switch", "damaged": "fetch", "timed out": "report", "dropped": "report"},
    "switch": {
        "switched": "probation",
        "damaged": "fetch",
        "failed": "rollback",
        "broken": "rollback",
        "died": "switch",
    },
    "probation": {"passed": "commit", "failed": "rollback", "broken": "rollback", "died": "probation"},
    "commit": {"committed": "report"},
    "rollback": {"restored": "report"},
    "report": {"reported": "idle"},
    "idle": {},
}
"""What follows on what. `broken` is a profile that cannot serve at all, `failed` one that serves badly."""

_OUTCOMES: Final[Mapping[Word, Outcome]] = {
    "refused": "rejected",
    "failed": "failed",
    "broken": "failed",
    "timed out": "timed out",
    "dropped": "dropped",
    "committed": "committed",
    "restored": "rolled back",
}
BAD: Final[frozenset[Outcome]] = frozenset({"failed", "rejected", "timed out", "rolled back"})
"""What counts against a rollout; a digest that ended so is denied until a newer revision."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update on its way. `deaths` were under the new profile; `served_s` is its good time in probation so far.

    `clean` says that the process ended in good order, so that the next start is no sign of a crash.
    """

    rollout: Rollout
    source: Source
    began: float
    state: State = "check"
    steps: int = 0
    deaths: int = 0
    served_s: float = 0.0
    clean: bool = False
    outcome: Outcome = ""
    reason: str = ""
    evidence: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def serves_new(self) -> bool:
        """Whether a node in this state must serve the new profile."""
        return self.state in ("probation", "commit")

    @property
    def may_be_dropped(self) -> bool:
        """Whether nothing of what is served has been touched yet."""
        return self.state in ("check", "fetch", "verify", "staged")


def step(update: Update, word: Word, reason: str = "", evidence: Mapping[str, str] | None = None) -> Update:
    """The update after `word`; raises ValueError for what cannot happen in its state."""
    follows = TABLE[update.state].get(word)
    if follows is None:
        raise ValueError(f"{word!r} cannot happen to an update in {update.state!r}")
    if update.state == "probation" and word == "failed" and not update.rollout.rollback:
        follows = "commit"  # it serves badly, but it serves, and whoever rolled it out wants it kept all the same
    steps = update.steps + 1
    if steps > MOST_STEPS - _WAY_OUT and follows not in ("commit", "rollback", "report", "idle"):
        follows, word, reason = (
            _way_out(update),
            "failed",
            f"it took more than {steps} steps, so it goes round in circles",
        )
    outcome = update.outcome or ""
    if word in _OUTCOMES and (outcome == "" or word == "restored"):
        outcome = _OUTCOMES[word]
    told = dict(update.evidence) | {key: value[:_MOST_WORDS] for key, value in (evidence or {}).items()}
    return replace(
        update,
        state=follows,
        steps=steps,
        outcome=outcome,
        reason=(reason or update.reason)[:_MOST_WORDS],
        evidence=MappingProxyType(dict(list(told.items())[:_MOST_EVIDENCE])),
    )


def _way_out(update: Update) -> State:
    return "rollback" if update.state in ("switch", "probation") else "report"


def started(update: Update) -> Update:
    """The update at a start of the process: one that died under the new profile, or on the way to it, counts it.

    The clean end of the process is taken back, so that only another one makes the next start no sign of a crash.
    """
    if update.clean or update.state not in ("switch", "probation"):
        return replace(update, clean=False)
    died = step(update, "died")
    if died.state not in ("switch", "probation"):
        return died  # there have been too many steps
    died = replace(died, deaths=died.deaths + 1, served_s=0.0)
    if died.deaths < MOST_DEATHS:
        return died
    told = {"deaths": str(died.deaths), "in": died.state}
    return step(died, "broken", f"the node died {died.deaths} times in {died.state}", told)


def place(node: str, rollout: str) -> float:
    """Where a node stands in a rollout, from 0 up to 100; the same each time, and another one in the next rollout."""
    digest = hashlib.sha256(f"{rollout}\0{node}".encode()).digest()
    return int.from_bytes(digest[:7]) / (1 << 56) * 100.0


def takes_part(rollout: Rollout, node: str, ring: str) -> bool:
    """Whether it is this node's turn."""
    in_ring = not rollout.rings or ring in rollout.rings
    return in_ring and place(node, rollout.name) < rollout.percent


def window_open(rollout: Rollout, minute: int) -> bool:
    """Whether a switch may be made in this minute of the local day; a window may go past midnight."""
    return not rollout.window or any(
        begin <= minute < end if begin <= end else minute >= begin or minute < end for begin, end in rollout.window
    )


def is_same(now: Rollout, then: Rollout) -> bool:
    """Whether a rollout still means what it meant, whatever else was changed of it."""
    return (now.name, now.profile_sha256) == (then.name, then.profile_sha256)


def local(profile: str, digest: str, revision: int, probation_s: float) -> Rollout:
    """What an operator's word amounts to."""
    return Rollout(
        name=LOCAL,
        revision=revision,
        profile=profile,
        profile_sha256=digest,
        timeout_s=3600.0,
        probation_s=probation_s,
    )


def status_of(update: Update) -> dict[str, object]:
    """How far it is, for people."""
    rollout = update.rollout
    told = {"state": update.state, "to": rollout.profile, "rollout": rollout.name}
    return {**told, "revision": rollout.revision, "step": update.steps}


def report_of(update: Update, node: str) -> dict[str, object]:
    """What the fleet's manager is told of an update that ended."""
    rollout = update.rollout
    return {
        "kind": "rollout",
        "node": node,
        "rollout": rollout.name,
        "revision": rollout.revision,
        "profile": rollout.profile,
        "profile_sha256": rollout.profile_sha256,
        "outcome": update.outcome,
        "reason": update.reason,
        "evidence": dict(update.evidence),
        "steps": update.steps,
        "deaths": update.deaths,
    }
