"""`outpost prewarm`: what a running node has warm, why, and how to make it forget."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from node.client import Client
from node.commands.numbers import whole
from node.commands.progress import amount
from node.commands.target import Target, add_target, target

_ABOUT = """\
A node remembers how its prompts begin and how often, and keeps the state of what is worth it in memory and on disk, so
that the same instructions, tools and questions need not be read again, also right after a restart.

What is stored was sent by several different sessions (prewarm.min_sessions) or is part of a template. Nothing shown
here is text: a prefix has a number and a length.
"""
_EXAMPLES = """\
examples:
  outpost prewarm status         what it has saved, and what it takes
  outpost prewarm why --top 5    the five prefixes that save most, and where they are
  outpost prewarm forget         erase history and states, in memory and on disk

Where no node runs, `outpost serve --set prewarm.enabled=false` erases what is stored.
"""
_COLUMNS = ("PREFIX", "TENANT", "KIND", "TOKENS", "ADDS", "ASKED", "SAVES", "IN MEMORY", "ON DISK", "WHY")

Row = Mapping[str, Any]
Verbs = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def register(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Add `prewarm` and its actions to the command line."""
    parser = verbs.add_parser(
        "prewarm",
        help="what a node has warm, why, and how to make it forget",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="what warm prefixes have saved, and what they take")
    why = actions.add_parser("why", help="which prefixes are where, and for what reason")
    why.add_argument("--top", type=whole(1), default=20, metavar="N", help="how many (default: 20)")
    forget = actions.add_parser("forget", help="erase history and states, in memory and on disk")
    for action, show in ((status, _status), (why, _why), (forget, _forget)):
        add_target(action)
        action.add_argument("--json", action="store_true", help="print JSON for other programs")
        action.set_defaults(run=run, show=show)


def run(args: argparse.Namespace) -> int:
    """Ask the node and print what it says."""
    asyncio.run(_ask(target(args.url, args.api_key), args))
    return 0


async def _ask(node: Target, args: argparse.Namespace) -> None:
    async with Client(node.url, node.api_key, tls=node.tls, silence_s=30.0) as client:
        await args.show(client, args)


async def _status(client: Client, args: argparse.Namespace) -> None:
    said = (await client.status()).get("prewarm", {})
    print(json.dumps(said, indent=2) if args.json else "\n".join(summary(said)))


async def _why(client: Client, args: argparse.Namespace) -> None:
    rows = (await client.prewarm())[: args.top]
    print(json.dumps(rows, indent=2) if args.json else table(rows))


async def _forget(client: Client, args: argparse.Namespace) -> None:
    count = await client.forget_prompts()
    print(json.dumps({"forgotten": count}) if args.json else _FORGOTTEN.format(count=count))


_FORGOTTEN = "{count} prefixes are forgotten. History and states are erased, in memory and on disk."


def summary(said: Row) -> list[str]:
    """What was saved, what it takes, what reading and loading cost here."""
    if not said.get("enabled", False):
        return ["Prewarming is off (prewarm.enabled); nothing is remembered."]
    if not said["usable"]:
        return ["This model cannot begin with a warm prefix; every prompt is read in full."]
    history = said["history"]
    return [
        f"hits      {said['hits']:,} of {said['requests']:,} requests, "
        f"{_share(said['cached_tokens'], said['prompt_tokens'])} of their prompts' tokens",
        f"saved     {said['saved_s']:,.1f} s of reading",
        f"memory    {amount(said['memory_bytes'])} of {amount(said['memory_budget'])}, "
        f"{said['evictions']:,} pieces had to go",
        f"disk      {amount(said['disk_bytes'])} of {amount(said['disk_budget'])}, "
        f"{said['loads']:,} loads, {said['saves']:,} saves",
        f"history   {history['prefixes']:,} prefixes that many sent, {history['nodes']:,} in all, "
        f"{amount(history['bytes'])}",
        f"a token   {said['prefill_ms_per_token']:.2f} ms to read, {said['load_ms_per_token']:.3f} ms to load",
    ]


def table(rows: Sequence[Row]) -> str:
    """A line a prefix, the one that saves most first."""
    if not rows:
        return "Nothing is worth having warm yet: no beginning was sent by enough sessions."
    cells = [_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row["id"]),
        "everybody" if row["tenant"] is None else row["tenant"] or "-",
        row["kind"],
        f"{row['tokens']:,}",
        f"+{row['adds']:,}",
        f"{row['per_hour']:.1f}/h",
        f"{row['saves_s']:.1f} s/h",
        _place(row, "memory", "in_memory"),
        _place(row, "disk", "on_disk"),
        row["why"],
    )


def _place(row: Row, place: str, found: str) -> str:
    """Whether it is there, and whether it is meant to be."""
    there, meant = row[found] >= row["tokens"], place in row["planned"]
    return {(True, True): "yes", (True, False): "for now", (False, True): "not yet", (False, False): "no"}[there, meant]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "none"
