"""One line of a diagnosis, and how many of them look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the diagnosis; `remedy` says what to do where something should be done."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def table(checks: Sequence[Check], colours: bool) -> list[str]:
    """The checks as lines; what to do stands below what was found."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        state = f"{check.state:<4}"
        state = f"\x1b[{_COLOURS[check.state]}m{state}\x1b[0m" if colours else state
        lines.append(f"{state}  {check.name:<{width}}  {check.found}")
        lines += [f"{'':<{width + 8}}-> {line}" for line in check.remedy.splitlines()]
    return lines


def verdict(checks: Sequence[Check]) -> str:
    """What all of them come to."""
    failed, warned = (sum(check.state == state for check in checks) for state in ("fail", "warn"))
    if failed:
        return f"{failed} to mend before a node can run."
    return f"A node can run here; {warned} could be better." if warned else "A node can run here."
