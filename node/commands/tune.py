"""`outpost tune`: measure variants of the model and the engine on this machine, and keep the best."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from node import layers, log
from node.commands.progress import Progress, amount, duration
from node.commands.serve import add_settings_flags, load_settings, settings_flags
from node.errors import OperatorError
from node.fleet import profiles
from node.tuning import job as jobs
from node.tuning import lab, tuned
from node.tuning.job import FULL, QUICK, Job
from node.tuning.lab import alone
from node.tuning.tune import Report, Row
from node.tuning.variants import WEIGHTS, Speed

_ABOUT = """\
Find out which variant of the model is fastest on this machine at equal quality: forms of its weights, made here from
the file as shipped by llama.cpp itself, threads, flash attention, KV cache, batches. Takes some minutes (tune.budget_s)
and wants the machine for itself; stop a running node first, or what it answers disturbs the figures.

SCORE is the weighted geometric mean of three ratios over the file as shipped, measured in turns with it:
  DECODE (0.4)  one answer     PREFILL (0.3)  reading a prompt     STREAMS (0.3)  eight answers at once
A quality gate keeps what is faster but worse from winning: it compares what a variant and the file as shipped would say
next at every place of a fixed text. KL is the mean divergence in nats (limit: tune.max_kl), AGREE how often the
likeliest token is the same (limit: tune.min_agreement).
"""
_EXAMPLES = """\
examples:
  outpost tune                     measure and report, change nothing
  outpost tune --apply             measure, and serve the winner from the next start on
  outpost tune --apply --quick     the likeliest variants only, in a minute
  outpost tune --clear             serve the file as shipped again, delete the variant

What --apply found stands in tuned.toml in the data directory and lies under all other settings: a key that is set in
node.toml, the environment or a flag is left alone, and is not varied. It counts only on this machine and for this model
file. A node tunes itself once when it is idle; tune.auto=false keeps it from that.
"""
_NICE = 19
_COLUMNS = ("VARIANT", *(name.upper() for name in WEIGHTS), "SCORE", "KL", "AGREE", "SIZE", "VERDICT")


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `tune` to the command line."""
    parser = verbs.add_parser(
        "tune",
        help="find the fastest variant of the model for this machine, at equal quality",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--apply", action="store_true", help="serve the winner from the next start on")
    doing.add_argument("--clear", action="store_true", help="take back what --apply did")
    parser.add_argument("--quick", action="store_true", help="fewer variants and shorter measurements")
    parser.add_argument("--json", action="store_true", help="print JSON for other programs")
    parser.add_argument("--background", action="store_true", help=argparse.SUPPRESS)  # how an idle node runs it
    add_settings_flags(parser)
    parser.set_defaults(run=run_command)


def run_command(args: argparse.Namespace) -> int:
    """Tune, or take it back."""
    try:
        return _clear() if args.clear else _tune(args)
    except OSError as error:
        raise OperatorError(f"Tuning failed: {error.filename or ''} {error.strerror or error}.") from error


def _clear() -> int:
    with alone():
        freed = tuned.clear()
    print(f"The file as shipped is served from the next start on; {amount(freed)} are free again.")
    return 0


def _tune(args: argparse.Namespace) -> int:
    if args.background:
        _go_with_parent()
    profile = profiles.chosen(args.profile)
    settings = load_settings(args, profile)
    log.configure(settings.log.level if settings.log.level == "debug" else "warning")
    with alone(), _ending_at_once():
        flags, layer = settings_flags(args), profile.layer if profile else None
        job = jobs.prepare(settings, layers.chosen(args.config, flags=flags, profile=layer))
        with Progress("tuning", 0, "trials") as bar:

            def tell(label: str, done: int, total: int) -> None:
                bar.label = label
                bar.update(done, total)

            report = jobs.run(job, QUICK if args.quick else FULL, tell, keep=args.apply)
    if args.json:
        print(json.dumps(as_json(job, report, kept=args.apply), indent=2))
    else:
        print("\n".join([*table(job, report), "", *verdict(job, report, kept=args.apply)]))
    return 0


def table(job: Job, report: Report) -> Iterator[str]:
    """The report as lines: what was measured, a row a variant."""
    space = job.space
    yield f"{job.settings.model.name}: {space.shipped}, {amount(space.bytes)}, as shipped at {job.source}"
    yield f"{len(report.rows) - 1} variants in {duration(report.seconds)}; ratios over the file as shipped"
    yield ""
    rows = [_COLUMNS, *(_cells(job, row) for row in report.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for first, *numbers, last in rows:
        cells = [
            f"{first:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=False)),
        ]
        yield "  ".join([*cells, last]).rstrip()


def verdict(job: Job, report: Report, *, kept: bool) -> Iterator[str]:
    """What it comes to, and what to do now."""
    winner, before, after = report.winner, report.shipped_speed, report.winner_speed
    if winner is None or before is None or after is None:
        yield report.why + " The file as shipped is served."
        return
    runs = f"medians of {report.rounds} rounds in turns" if report.rounds > 1 else "one round"
    yield f"{winner.variant.label(job.space.base)} wins, in the last run against the file as shipped ({runs}):"
    for name in WEIGHTS:
        speeds = f"{getattr(before, name):7.1f} -> {getattr(after, name):7.1f} tokens/s"
        yield f"  {name:<8} {speeds} ({_ratio(winner, name)})"
    if kept:
        yield "It is served from the next start on; `outpost tune --clear` takes it back."
    else:
        yield "Nothing was changed. `outpost tune --apply` measures again and keeps the winner."


def as_json(job: Job, report: Report, *, kept: bool) -> dict[str, Any]:
    """The report as plain values."""
    base, winner = job.space.base, report.winner
    return {
        "model": job.settings.model.name,
        "shipped": job.space.shipped,
        "kept": kept,
        "winner": winner.variant.label(base) if winner else None,
        "why": report.why,
        "gains": _speed(winner.ratio) if winner else None,
        "tokens_per_s": {"shipped": _speed(report.shipped_speed), "winner": _speed(report.winner_speed)},
        "limits": {"max_kl": job.settings.tune.max_kl, "min_agreement": job.settings.tune.min_agreement},
        "rounds": report.rounds,
        "seconds": round(report.seconds, 1),
        "variants": [
            {
                "form": row.variant.form or None,
                "engine": row.variant.differences(base),
                "verdict": row.verdict,
                "why": row.why,
                "ratio": _speed(row.ratio),
                "score": round(row.ratio.score, 3) if row.ratio else None,
                "kl": round(row.quality.kl, 5) if row.quality else None,
                "agreement": round(row.quality.agreement, 4) if row.quality else None,
                "places": row.quality.places if row.quality else None,
                "bytes": row.bytes or None,
            }
            for row in report.rows
        ],
    }


def _cells(job: Job, row: Row) -> tuple[str, ...]:
    quality = row.quality
    return (
        row.variant.label(job.space.base),
        *(_ratio(row, name) for name in WEIGHTS),
        f"{row.ratio.score:.2f}" if row.ratio else "",
        f"{quality.kl:.4f}" if quality else "",
        f"{quality.agreement:.3f}" if quality else "",
        amount(row.bytes) if row.bytes else "",
        f"{row.verdict}: {row.why}" if row.why else row.verdict,
    )


def _ratio(row: Row, name: str) -> str:
    return f"{getattr(row.ratio, name):.2f} x" if row.ratio else ""


def _speed(speed: Speed | None) -> dict[str, float] | None:
    return {name: round(getattr(speed, name), 3) for name in WEIGHTS} if speed else None


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """SIGINT and SIGTERM clear up and end the process: an exception would be lost in a callback of llama.cpp."""

    def end(number: int, frame: FrameType | None) -> None:
        lab.clear()
        os._exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _go_with_parent() -> None:
    """Last in line for the processor, and gone when the node is: it holds the other end of this process's input."""
    os.nice(_NICE)

    def wait() -> None:
        while os.read(0, 1 << 10):  # not through `sys.stdin`: Python cannot end while a thread holds that
            pass
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()
