"""What a benchmark comes to: figures, each with its target where it has one, as a table or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_COLUMNS = ("FIGURE", "VALUE", "TARGET", "", "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One result. `detail` says in words what it was made of."""

    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None where there is none. What is not a number meets nothing."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def target(self) -> str:
        """The target as text, "" where there is none."""
        if self.at_least is not None:
            return f">= {_number(self.at_least, self.unit)}"
        return "" if self.at_most is None else f"<= {_number(self.at_most, self.unit)}"


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's figures; `facts` are the conditions that they were taken under."""

    title: str
    figures: tuple[Figure, ...]
    facts: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[Figure, ...]:
        """The figures whose target was missed."""
        return tuple(figure for figure in self.figures if figure.met is False)

    @property
    def verdict(self) -> str:
        """One line: what was met and what was missed."""
        judged = sum(figure.met is not None for figure in self.figures)
        if not self.missed:
            return f"All {judged} targets met."
        return f"{len(self.missed)} of {judged} targets missed: {', '.join(figure.name for figure in self.missed)}."


def table(report: Report) -> str:
    """The report as text: title, conditions, a line a figure, the verdict."""
    rows = [_COLUMNS, *(_cells(figure) for figure in report.figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [report.title, *(f"  {fact}" for fact in report.facts), ""]
    lines += [_line(row, widths) for row in rows]
    return "\n".join([*lines, "", report.verdict])


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain values, for `json.dumps`."""
    return {
        "title": report.title,
        "facts": list(report.facts),
        "met": not report.missed,
        "figures": [
            {
                "name": figure.name,
                "value": round(figure.value, 4) if math.isfinite(figure.value) else None,
                "unit": figure.unit,
                "at_least": figure.at_least,
                "at_most": figure.at_most,
                "met": figure.met,
                "detail": figure.detail,
            }
            for figure in report.figures
        ],
    }


def _cells(figure: Figure) -> tuple[str, ...]:
    word = {True: "met", False: "MISSED", None: ""}[figure.met]
    return figure.name, _number(figure.value, figure.unit), figure.target, word, figure.detail


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, value, target, word, detail = row
    cells = (f"{name:<{widths[0]}}", f"{value:>{widths[1]}}", f"{target:>{widths[2]}}", f"{word:<{widths[3]}}", detail)
    return "  ".join(cells).rstrip()


def _number(value: float, unit: str) -> str:
    """1234.5 -> "1,234 ms"; 12.34 -> "12.3 ms"; ratios keep three digits."""
    if not unit:
        return f"{value:.3f}"
    whole = math.isfinite(value) and (abs(value) >= 1000 or value == int(value))
    return f"{value:,.{0 if whole else 1}f} {unit}"
