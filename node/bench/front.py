"""How throughput and latency trade off: points of several settings and rates, their Pareto front, as CSV and as PNG."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from node.errors import OperatorError

_INSTALL = "tools/python tools/install.py --extra bench"


@dataclass(frozen=True, slots=True)
class Point:
    """One setting under one load; seconds and tokens a second. `rate` is requests a second."""

    setting: str
    rate: float
    throughput: float
    goodput: float
    attainment: float
    ttft_p50_s: float
    ttft_p95_s: float
    gap_p50_s: float
    gap_p99_s: float


def pareto(points: Iterable[Point]) -> list[Point]:
    """Those that no other beats in both throughput and TTFT (p95); by throughput, ascending."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.throughput, point.ttft_p95_s)):
        if not front or point.ttft_p95_s < front[-1].ttft_p95_s:
            front.append(point)
    return front[::-1]


def write_csv(points: Sequence[Point], path: Path) -> None:
    """All points, a column a figure; the last column says which are on the front of all settings together."""
    front = pareto(points)
    names = [field.name for field in fields(Point)]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*names, "on_front"])
            for point in points:
                writer.writerow([*asdict(point).values(), int(point in front)])
    except OSError as error:
        raise OperatorError(f"Cannot write {path}: {error.strerror}.") from error


def need_plotting() -> None:
    """Raise OperatorError unless a PNG can be made here: better before a long measurement than after it."""
    try:
        import matplotlib  # noqa: F401  # an optional extra
    except ImportError as error:
        raise OperatorError("A plot needs matplotlib, which is not installed here.", hint=_INSTALL) from error


def plot(points: Sequence[Point], path: Path) -> None:
    """A PNG: a curve a setting from its lowest to its highest rate, and the front of all of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="throughput, tokens/s", ylabel="time to first token, p95, s", yscale="log")
    for setting in dict.fromkeys(point.setting for point in points):
        curve = sorted((point for point in points if point.setting == setting), key=lambda point: point.rate)
        xs, ys = [point.throughput for point in curve], [point.ttft_p95_s for point in curve]
        axes.plot(xs, ys, marker="o", label=setting)
        for point in curve:
            axes.annotate(f"{point.rate:.2g}/s", (point.throughput, point.ttft_p95_s), fontsize="x-small")
    front = pareto(points)
    xs, ys = [point.throughput for point in front], [point.ttft_p95_s for point in front]
    axes.step(xs, ys, where="pre", color="grey", linestyle=":", label="Pareto front")
    axes.legend()
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise OperatorError(f"Cannot write {path}: {error.strerror}.") from error
