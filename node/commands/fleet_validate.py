"""`outpost fleet validate | diff`: what is wrong with a profile, and what it would change."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from node.commands.fleet_desk import add_desk, publication
from node.commands.models import bars
from node.commands.progress import amount
from node.errors import ModelFileError, OperatorError, SettingsError
from node.fleet import chunks, difference, places, profiles
from node.fleet.directive import ChunkIndex
from node.fleet.profile import Profile, find_problems, parse
from node.fleet.publish import Publication
from node.fleet.trust import refuse_paths
from node.models import weights

Actions = argparse._SubParsersAction


def add_parser(actions: Actions[argparse.ArgumentParser]) -> None:
    """Add what only looks."""
    checking = actions.add_parser(
        "validate", help="every mistake in profiles, with its line; exit code 1 if there is one"
    )
    checking.add_argument("files", metavar="FILE", type=Path, nargs="+")
    checking.set_defaults(run=_validate)
    comparing = actions.add_parser("diff", help="what a profile changes on nodes: settings, and bytes to fetch")
    comparing.add_argument("profile", metavar="NAME|FILE", help="the new one: a .toml file, or `outpost profile list`")
    comparing.add_argument("--from", metavar="ROLLOUT|FILE", dest="before", required=True, help="what the nodes have")
    add_desk(comparing, signs=False)
    comparing.set_defaults(run=_diff)


def _validate(args: argparse.Namespace) -> int:
    wrong = 0
    for path in args.files:
        lines = list(mistakes(path))
        wrong += bool(lines)
        print("\n".join(lines) or f"{path}: no mistakes")
    return 1 if wrong else 0


def mistakes(path: Path) -> Iterator[str]:
    """Every mistake, as a line."""
    try:
        with path.open("rb") as file:
            text = file.read(1 << 20).decode()
    except OSError as error:
        yield f"{path}: {error.strerror}"
        return
    except UnicodeDecodeError:
        yield f"{path}: it is not UTF-8"
        return
    problems = find_problems(text)
    yield from (f"{path}, {problem}" for problem in problems)
    if not problems:
        try:
            refuse_paths(parse(text, str(path)))
        except OperatorError as error:
            yield f"{path}: {error.message}"


def _diff(args: argparse.Namespace) -> int:
    changed = publication(args)
    before, after = _before(args.before, changed), profiles.find(args.profile)
    found = difference.changes(before, after)
    widest = max((len(change.key) for change in found), default=0)
    for change in found:
        print(f"{change.key:<{widest}}  {change.before} → {change.after}")
    if not found:
        print("No setting changes.")
    print("\n".join(_bytes(before, after, changed)))
    return 0


def _before(name: str, changed: Publication) -> Profile:
    """A rollout's profile, or one of a file."""
    for rollout in changed.rollouts():
        if rollout.name == name:
            text = changed.read("profiles", places.profile_target(rollout.profile, rollout.profile_sha256))
            return parse(text.decode(), name)
    return profiles.find(name)


def _bytes(before: Profile, after: Profile, changed: Publication) -> Iterator[str]:
    if before.model_sha256 == after.model_sha256:
        yield "The model's file stays: nothing is fetched."
        return
    if not after.model_sha256:
        yield "The new profile names no file: nothing is fetched."
        return
    new = _index(after, changed)
    if new is None:
        yield f"The model's file {after.model_sha256[:16]}… is neither signed nor installed here: its cost is unknown."
        return
    old = _index(before, changed) if before.model_sha256 else None
    cost = difference.cost(old, new)
    share = 100 * cost.packed / cost.size
    yield (
        f"A node fetches {amount(cost.packed)} in {cost.chunks} chunks, {share:.1f} % of {amount(cost.size)}"
        f"{'' if old else ' (its old file is not known here)'}."
    )


def _index(profile: Profile, changed: Publication) -> ChunkIndex | None:
    """The signed index, else one made of the installed file."""
    target = places.index_target(profile.model_sha256)
    if target in changed.signed("profiles").targets:
        return msgspec.json.decode(changed.read("profiles", target), type=ChunkIndex)
    try:
        with bars() as report:
            made = chunks.index(weights.locate(profile.settings.model.name), report)
    except (ModelFileError, SettingsError, OSError):
        return None
    return made if made.sha256 == profile.model_sha256 else None
