"""`outpost fleet wipe`: erase what this node knows of its users, and its keys."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from node import settings
from node.commands.progress import amount
from node.errors import SettingsError
from node.fleet import wipe
from node.layers import load

Actions = argparse._SubParsersAction


def add_parser(actions: Actions[argparse.ArgumentParser]) -> None:
    """Add `wipe`."""
    parser = actions.add_parser(
        "wipe",
        help="erase what this node knows of its users, its profiles, and its keys; models stay",
        description=wipe.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--yes", action="store_true", help="do it; else it is only shown what would go")
    parser.add_argument("--authority", action="store_true", help="the authority of a whole fleet, too, if it is here")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (default: ./node.toml if it exists)")
    parser.add_argument("--json", action="store_true", help="print JSON for other programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show what would go, or erase it; raises SettingsError while a node runs, and without --yes."""
    home = settings.home()
    gone = wipe.ours(home, load(args.config), authority=args.authority)
    left = wipe.strangers(home, gone)
    if not args.yes and not args.json:
        for path in gone:
            print(f"  {path}")
    if not args.yes and gone:
        raise SettingsError(
            f"This would erase {len(gone)} files and folders for good.", hint="outpost fleet wipe --yes"
        )
    freed = wipe.erase(gone)
    if args.json:
        told = {"erased": [str(path) for path in gone], "bytes": freed, "left": [str(path) for path in left]}
        print(json.dumps(told, indent=2))
        return 0
    print(f"Erased {len(gone)} files and folders, {amount(freed)}." if gone else "There was nothing to erase.")
    for path in left:
        print(f"  left, since nobody knows what it is: {path}")
    if (home / wipe.AUTHORITY).exists():
        print(f"  left: {home / wipe.AUTHORITY}, a fleet's own authority (--authority erases it, too)")
    return 0
