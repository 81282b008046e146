"""Stall ratio against loss, a line a scheme: as CSV, and as a picture where matplotlib is installed."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PLOTTED = "150 ms, 50/s"
_CAPTION = "round trip 150 ms, 50 tokens a second, independent losses"
_LEAST = 0.1  # % of a stall that the logarithmic axis still shows
_STYLES = {"link": ("C0", 2.8), "floor": ("0.6", 1.5)}  # colour and width; the other schemes take what is left


@dataclass(frozen=True, slots=True)
class Point:
    """One scheme in one cell; loss and stall in %."""

    live: bool
    row: int
    cell: str
    loss: float
    scheme: str
    stall: float


def write_csv(points: Sequence[Point], path: Path) -> None:
    """A line a point."""
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["path", "row", "cell", "loss", "scheme", "stall"])
        for one in points:
            where = "live" if one.live else "simulated"
            writer.writerow([where, one.row, one.cell, f"{one.loss:g}", one.scheme, f"{one.stall:.3f}"])


def lines(points: Sequence[Point]) -> dict[tuple[str, bool], list[tuple[float, float]]]:
    """What is drawn: (loss, stall) by scheme and path, of the cells that differ in loss only."""
    found: dict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
    for one in points:
        if _PLOTTED in one.cell:
            found[one.scheme, one.live].append((one.loss, max(_LEAST, one.stall)))
    return {key: sorted(line) for key, line in found.items()}


def plot(points: Sequence[Point], path: Path) -> None:
    """Draw them as PNG; live ones are dashed, the link's own are thick, the floor is grey."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    drawn = lines(points)
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="packets lost, %", ylabel="stall ratio, %", yscale="log")
    axes.set_title(f"What a reader waits beyond the model's pace\n{_CAPTION}", fontsize="medium")
    others = [scheme for scheme in dict.fromkeys(scheme for scheme, _ in drawn) if scheme not in _STYLES]
    styles = _STYLES | {scheme: (f"C{1 + i % 9}", 1.5) for i, scheme in enumerate(others)}
    for (scheme, live), line in drawn.items():
        xs, ys = zip(*line, strict=True)
        label, style = (f"{scheme}, live", "s--") if live else (scheme, "o-")
        colour, width = styles[scheme]
        axes.plot(xs, ys, style, color=colour, linewidth=width, label=label, markersize=4)
    axes.set_xticks(sorted({loss for line in drawn.values() for loss, _ in line}))
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="major", alpha=0.5)
    axes.grid(visible=True, which="minor", alpha=0.15)
    if drawn:
        figure.legend(fontsize="small", loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=120)
