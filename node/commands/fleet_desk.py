"""What the manager's commands share: where the repository and the keys are, and how a change is written."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from node.errors import OperatorError
from node.fleet import keys
from node.fleet.publish import Keyring, Publication, today

_PASSPHRASE = "OUTPOST_PASSPHRASE"  # the variable's name, not a secret
_MAX_PASSPHRASE = 1024


def add_desk(parser: argparse.ArgumentParser, *, signs: bool = True) -> None:
    """The flags that say where things are."""
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, default=Path(), help="the manager's folder (default: this one)"
    )
    if signs:
        parser.add_argument(
            "--key", metavar="FILE", type=Path, action="append", help="a key to sign with (default: DIR/keys/*.pem)"
        )
        add_passphrase(parser)
        parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def add_passphrase(parser: argparse.ArgumentParser) -> None:
    """Where a passphrase comes from: never the command line, which others can read."""
    parser.add_argument(
        "--passphrase-file", metavar="FILE", type=Path, help=f"the keys' passphrase (default: {_PASSPHRASE}, or none)"
    )


def passphrase(args: argparse.Namespace) -> bytes | None:
    """The passphrase, where there is one; raises OperatorError."""
    if args.passphrase_file is None:
        return os.environ.get(_PASSPHRASE, "").encode() or None
    try:
        with args.passphrase_file.open("rb") as file:
            return bytes(file.read(_MAX_PASSPHRASE)).rstrip(b"\r\n") or None
    except OSError as error:
        raise OperatorError(f"Cannot read {args.passphrase_file}: {error.strerror}.") from error


def repository(args: argparse.Namespace) -> Path:
    """The folder that gets uploaded."""
    return Path(args.folder) / "repository"


def key_folder(args: argparse.Namespace) -> Path:
    """The folder that never is."""
    return Path(args.folder) / "keys"


def publication(args: argparse.Namespace) -> Publication:
    """The repository as it is; raises OperatorError."""
    found = Publication(repository(args), today())
    found.version("timestamp")
    return found


def keyring(args: argparse.Namespace) -> Keyring:
    """The keys at hand; raises OperatorError."""
    named = args.key or sorted(key_folder(args).glob("*.pem"))
    secret = passphrase(args)
    return Keyring(tuple(keys.read(path, secret) for path in named))


def finish(args: argparse.Namespace, changed: Publication, signers: Keyring) -> int:
    """Sign and write, or say what would be; returns the exit code."""
    if args.dry_run:
        lacking = changed.missing(signers)
        print("Nothing is written: --dry-run.")
        for role, count in lacking.items():
            print(f"  {role} would lack {count} signature{'s' if count > 1 else ''}")
        return 1 if lacking else 0
    files = changed.commit(signers)
    print(f"Signed: {', '.join(name.rpartition('/')[2] for name in files)}")
    print(f"Copy {changed.folder} to where fleet.url of your nodes points; timestamp.json last.")
    return 0
