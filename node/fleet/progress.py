"""How far a rollout is, from what its nodes report, and whether it must stop. Pure.

A node counts once for each revision, with the last that it said. What failed, was refused, timed out or was rolled back
is bad; of at least `min_executed` nodes that ended, `abort_percent` bad ones stop the rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from node.fleet.directive import Name, Rollout

_Word = Annotated[str, msgspec.Meta(max_length=64)]
BAD = frozenset({"failed", "rejected", "timed out", "rolled back"})
GOOD = frozenset({"committed"})
MAX_BYTES = 64 << 10


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of an update that ended. A newer node may say more; that is passed over."""

    node: _Word
    rollout: Name
    revision: int
    outcome: _Word
    reason: Annotated[str, msgspec.Meta(max_length=4000)] = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """Nodes by outcome, the reasons of bad ones, and whether the rollout must stop."""

    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    ended: int
    bad: int
    must_stop: bool

    @property
    def bad_percent(self) -> float:
        """Of those that ended."""
        return 100 * self.bad / self.ended if self.ended else 0.0


def read(raw: bytes) -> Report | None:
    """A report of a rollout; None for what is none."""
    if len(raw) > MAX_BYTES:
        return None
    try:
        return msgspec.json.decode(raw, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def tally(rollout: Rollout, reports: Iterable[Report]) -> Tally:
    """Count the reports, oldest first, that are about this revision of the rollout."""
    last = {
        report.node: report
        for report in reports
        if (report.rollout, report.revision) == (rollout.name, rollout.revision)
    }
    outcomes = Counter(report.outcome for report in last.values())
    bad = [report for report in last.values() if report.outcome in BAD]
    ended = len(bad) + sum(report.outcome in GOOD for report in last.values())  # what gave way to news is neither
    over = ended > 0 and 100 * len(bad) >= rollout.abort_percent * ended and bool(bad)
    reasons = Counter(report.reason.partition("\n")[0][:200] or report.outcome for report in bad)
    return Tally(dict(outcomes), dict(reasons.most_common(5)), ended, len(bad), over and ended >= rollout.min_executed)
