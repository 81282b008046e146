"""`outpost fleet rollout | abort | status | watch`: which nodes get which signed profile, and how it goes."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from node.commands.fleet_desk import add_desk, finish, keyring, publication
from node.commands.fleet_hub import reports
from node.errors import NodeError, OperatorError
from node.fleet import profiles
from node.fleet.directive import Rollout
from node.fleet.progress import Report, Tally, tally
from node.fleet.publish import Publication

Actions = argparse._SubParsersAction

_WINDOW = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)")


def add_parser(actions: Actions[argparse.ArgumentParser]) -> None:
    """Add what chooses, stops and watches."""
    _add_rollout(actions)
    stopping = actions.add_parser("abort", help="begin a rollout on no further node")
    stopping.add_argument("name", metavar="NAME")
    add_desk(stopping)
    stopping.set_defaults(run=_abort)
    showing = actions.add_parser("status", help="how far rollouts are, from what nodes reported to the hub")
    showing.add_argument("--json", action="store_true", help="print JSON for other programs")
    add_desk(showing, signs=False)
    watching = actions.add_parser("watch", help="stop rollouts by itself where too many nodes report trouble")
    watching.add_argument("--every", metavar="SECONDS", type=float, default=60.0, help="(default: 60; 0 looks once)")
    add_desk(watching)
    for action in (showing, watching):
        action.add_argument("--hub", metavar="URL", help="the hub that the nodes report to")
        action.add_argument("--api-key", metavar="KEY", help="a key of the hub (default: OUTPOST_HUB_KEY, or none)")
        action.add_argument("--reports", metavar="FILE", type=Path, help="a file of reports instead, one JSON a line")
    showing.set_defaults(run=_status)
    watching.set_defaults(run=_watch)


def _add_rollout(actions: Actions[argparse.ArgumentParser]) -> None:
    rolling = actions.add_parser("rollout", help="choose a signed profile for a part of the fleet, or widen that part")
    rolling.add_argument("name", metavar="NAME", help="what people call it; the same name again changes it")
    rolling.add_argument("--profile", metavar="NAME|FILE", help="a signed profile; needed the first time")
    rolling.add_argument("--percent", type=float, help="of the nodes, by a hash of their ids (first time: 100)")
    rolling.add_argument("--ring", metavar="RING", action="append", help="only nodes whose fleet.ring this is")
    rolling.add_argument("--window", metavar="HH:MM-HH:MM", action="append", help="of the node's day, to switch in")
    rolling.add_argument("--start", metavar="TIME", help="not before then, like 2027-01-31T03:00+01:00")
    rolling.add_argument("--min-executed", type=int, help="nodes that must have ended before it may stop by itself")
    rolling.add_argument("--abort-percent", type=float, help="of those that ended: so many bad ones stop it")
    rolling.add_argument("--timeout-s", type=float, help="seconds a node may take")
    rolling.add_argument("--probation-s", type=float, help="seconds a node watches the new profile before it commits")
    rolling.add_argument(
        "--no-rollback", action="store_true", help="a node that does not do well keeps the new profile"
    )
    rolling.add_argument("--retry", action="store_true", help="let nodes on which it failed try again")
    add_desk(rolling)
    rolling.set_defaults(run=_rollout)


def _rollout(args: argparse.Namespace) -> int:
    changed = publication(args)
    before = next((rollout for rollout in changed.rollouts() if rollout.name == args.name), None)
    if before is None and args.profile is None:
        raise OperatorError(f"There is no rollout {args.name} yet: --profile says what it brings.")
    after = _joined(args, changed, before)
    changed.put_rollout(after)
    print(f"{after.name}, revision {after.revision}: {after.profile} ({after.profile_sha256[:16]}…) {_for_whom(after)}")
    return finish(args, changed, keyring(args))


def _joined(args: argparse.Namespace, changed: Publication, before: Rollout | None) -> Rollout:
    """The rollout as it was, with what was named; a new revision where nodes shall try again."""
    profile, digest = _chosen(args.profile, changed) if args.profile else (None, None)
    named = {
        "profile": profile,
        "profile_sha256": digest,
        "percent": args.percent,
        "rings": args.ring,
        "window": [_minutes(text) for text in args.window] if args.window else None,
        "start": _seconds(args.start) if args.start else None,
        "min_executed": args.min_executed,
        "abort_percent": args.abort_percent,
        "timeout_s": args.timeout_s,
        "probation_s": args.probation_s,
        "rollback": False if args.no_rollback else None,
    }
    base = msgspec.to_builtins(before) if before else {"name": args.name, "revision": 0}
    news = before is None or before.stopped or args.retry or digest not in (None, before.profile_sha256)
    fields = base | {key: value for key, value in named.items() if value is not None}
    fields |= {"revision": base["revision"] + news, "stopped": False}
    try:
        return msgspec.convert(fields, Rollout)
    except msgspec.ValidationError as error:
        raise OperatorError(f"That is no rollout: {error}.") from error


def _chosen(wanted: str, changed: Publication) -> tuple[str, str]:
    """Name and SHA-256 of a signed profile; raises OperatorError."""
    if wanted.endswith(".toml"):
        profile = profiles.read(Path(wanted))
        return profile.name, hashlib.sha256(profile.text.encode()).hexdigest()
    signed = changed.profiles()
    found = {
        digest for target, digest in signed.items() if re.fullmatch(rf"profiles/{re.escape(wanted)}-\w+\.toml", target)
    }
    if len(found) == 1:
        return wanted, found.pop()
    if not found:
        raise OperatorError(f"No profile {wanted} is signed.", hint=f"outpost fleet add {wanted}")
    raise OperatorError(
        f"{len(found)} profiles {wanted} are signed: {', '.join(sorted(digest[:16] for digest in found))}.",
        hint="Name the file instead: --profile ./NAME.toml",
    )


def _minutes(text: str) -> tuple[int, int]:
    found = _WINDOW.fullmatch(text)
    if not found:
        raise OperatorError(f"`{text}` is no window; it must be like 01:00-05:00.")
    first, second, third, fourth = map(int, found.groups())
    begin, end = first * 60 + second, third * 60 + fourth
    if begin == end or end > 24 * 60:
        raise OperatorError(f"`{text}` is no window: it has no minute, or ends on the next day after 24:00.")
    return begin, end


def _seconds(text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise OperatorError(f"`{text}` is no time; it must be like 2027-01-31T03:00+01:00.") from error
    if when.tzinfo is None:
        raise OperatorError(f"`{text}` does not say in which zone; add +00:00, or another one.")
    return when.timestamp()


def _for_whom(rollout: Rollout) -> str:
    rings = f" of {', '.join(rollout.rings)}" if rollout.rings else ""
    return "stopped" if rollout.stopped else f"for {rollout.percent:g} %{rings or ' of the nodes'}"


def _abort(args: argparse.Namespace) -> int:
    changed = publication(args)
    if not stop(changed, args.name):
        raise OperatorError(f"There is no rollout {args.name} that is not stopped already.")
    print(f"{args.name} is stopped: no further node begins with it, and those that have not switched drop it.")
    return finish(args, changed, keyring(args))


def stop(changed: Publication, name: str) -> bool:
    """Let the rollout be stopped from the next signing on; False where there is nothing to stop."""
    for rollout in changed.rollouts():
        if rollout.name == name and not rollout.stopped:
            changed.put_rollout(msgspec.structs.replace(rollout, stopped=True))
            return True
    return False


def _status(args: argparse.Namespace) -> int:
    found = [(rollout, tally(rollout, reports(args))) for rollout in publication(args).rollouts()]
    if args.json:
        print(json.dumps([_described(rollout, counted) for rollout, counted in found], indent=2))
        return 0
    print("\n".join(table(found)) if found else "There is no rollout.")
    return 0


def _described(rollout: Rollout, counted: Tally) -> dict[str, object]:
    return {
        "rollout": msgspec.to_builtins(rollout),
        "outcomes": counted.outcomes,
        "reasons": counted.reasons,
        "ended": counted.ended,
        "bad": counted.bad,
        "must_stop": counted.must_stop,
    }


def table(found: Sequence[tuple[Rollout, Tally]]) -> list[str]:
    """Rollouts as lines: what, for whom, how many ended how, and why."""
    lines = []
    for rollout, counted in found:
        lines.append(f"{rollout.name}, revision {rollout.revision}: {rollout.profile} {_for_whom(rollout)}")
        outcomes = ", ".join(f"{count} {outcome or 'under way'}" for outcome, count in counted.outcomes.items())
        lines.append(f"  {outcomes or 'no reports yet'}")
        if counted.bad:
            least = f" (counts from {rollout.min_executed} on)" if counted.ended < rollout.min_executed else ""
            lines.append(
                f"  {counted.bad_percent:.0f} % bad of {counted.ended}{least}; stops at {rollout.abort_percent:g} %"
            )
        lines += [f"  {count} x {reason}" for reason, count in counted.reasons.items()]
    return lines


def _watch(args: argparse.Namespace) -> int:
    """Look until interrupted. A hub that cannot be reached, or a folder that is being copied, is looked at again."""
    while True:
        try:
            look(args)
        except NodeError as error:
            if args.every <= 0:
                raise
            print(f"outpost: {error.message}", file=sys.stderr)
        if args.every <= 0:
            return 0
        time.sleep(args.every)


def look(args: argparse.Namespace) -> list[str]:
    """One look; returns the rollouts that were stopped."""
    changed, seen = publication(args), reports(args)
    stopped = [rollout.name for rollout in to_stop(changed.rollouts(), seen)]
    for name in stopped:
        stop(changed, name)
        print(f"{name} is stopped: too many nodes report trouble.")
    if stopped:
        finish(args, changed, keyring(args))
    return stopped


def to_stop(rollouts: Sequence[Rollout], seen: Sequence[Report]) -> list[Rollout]:
    """Those that run and must not."""
    return [rollout for rollout in rollouts if not rollout.stopped and tally(rollout, seen).must_stop]
