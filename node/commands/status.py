"""`outpost status`: what a running node is doing, as a table that any part of the node may add to.

A section is a line of its plain members; a member that is a group of alike groups, as the levels of the queue are, is a
table below it. Units are told by the names: what ends in `_s` is seconds, in `_bytes` bytes, in `_share` a part of 1.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
from collections.abc import Mapping
from typing import Any

from node.client import Client
from node.commands.numbers import number
from node.commands.progress import amount
from node.commands.target import Target, add_target, target

_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_UNITS = ("_s", "_bytes", "_share")

Section = Mapping[str, Any]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `status` to the command line."""
    parser = verbs.add_parser(
        "status",
        help="what a running node is doing: load, queue, limits, memory",
        description="Show what a running node is doing: who runs and who waits, how long, and what holds it back.",
        epilog="Examples:\n  outpost status\n  outpost status --watch\n  outpost status --json | jq .queue",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print JSON for other programs; a line a look with --watch")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=number(0.1, 3600),
        const=2.0,
        metavar="SECONDS",
        help="look again and again (every 2 s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one look, or one after another until Ctrl-C."""
    try:
        asyncio.run(_look(target(args.url, args.api_key), args))
    except KeyboardInterrupt:
        return 130
    return 0


async def _look(node: Target, args: argparse.Namespace) -> None:
    async with Client(node.url, node.api_key, tls=node.tls, silence_s=10.0) as client:
        while True:
            status = await client.status()
            if args.json:
                print(json.dumps(status, indent=None if args.watch else 2), flush=True)
            else:
                clear = _HOME_AND_CLEAR if args.watch and sys.stdout.isatty() else ""
                print(clear + "\n".join([f"{node.url}: {headline(status)}", "", *describe(status)]), flush=True)
            if not args.watch:
                return
            await asyncio.sleep(args.watch)


def headline(status: Mapping[str, Section]) -> str:
    """Which model, and whether it can answer."""
    node, model = status.get("node", {}), status.get("model", {})
    up = datetime.timedelta(seconds=int(node.get("uptime_s", 0)))
    return (
        f"{model.get('id', 'no model')} is {node.get('state', 'unknown')}, up {up}, Outpost {node.get('version', '?')}"
    )


def describe(status: Mapping[str, Section]) -> list[str]:
    """All sections but the headline's, and their tables below."""
    sections = {name: section for name, section in status.items() if name != "node"}
    width = max((len(name) for name in sections), default=0)
    lines, tables = [], []
    for name, section in sections.items():
        plain = {key: value for key, value in section.items() if not _is_table(value)}
        if plain:
            lines.append(f"{name:<{width}}  {_told(plain)}")
        for key, value in section.items():
            if _is_table(value):
                tables += ["", *table(key, value)]
    return lines + tables


def table(name: str, rows: Mapping[str, Section]) -> list[str]:
    """Alike groups as rows; a column for every member that any of them has."""
    keys = list(dict.fromkeys(key for row in rows.values() for key in row))
    cells = [[name, *(_label(key) for key in keys)]]
    cells += [[row, *(_value(key, members.get(key)) for key in keys)] for row, members in rows.items()]
    cells[0] = [cell.upper() for cell in cells[0]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(row, dict) for row in value.values())


def _told(section: Section) -> str:
    """Its members in a line; a text that is empty says nothing."""
    return ", ".join(f"{_label(key)} {_value(key, value)}" for key, value in section.items() if value != "")


def _label(key: str) -> str:
    for unit in _UNITS:
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _value(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"({_told(value)})" if value else "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if key.endswith("_s"):
        return f"{value * 1000:.0f} ms" if abs(value) < 10 else f"{value:,.0f} s"
    if key.endswith("_bytes"):
        return amount(value)
    if key.endswith("_share"):
        return f"{value:.0%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
