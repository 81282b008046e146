"""`outpost profile`: what a node can be, and whether this machine fits."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict

from node import layers, settings
from node.commands.doctor_library import probe_library
from node.commands.doctor_table import Check, table
from node.commands.models import bars
from node.errors import NodeError, SettingsError
from node.fleet import fit, profiles
from node.fleet.footprint import MIB, Footprint, footprint
from node.fleet.profile import Profile
from node.fleet.verify import refuse_other_model
from node.machine import hardware
from node.machine.gpu import load_nvml
from node.machine.hardware import Hardware
from node.models import gguf, weights
from node.settings import Settings
from node.tuning import tuned

_ABOUT = """\
Show, check and choose profiles: what a class of machines should run, in one file.

A profile is a layer of settings above the defaults; what this node itself says (node.toml, environment, flags) goes
above it. `use` keeps a copy in the data directory, which counts from the next start on.
"""
_EXAMPLES = """\
examples:
  outpost profile                        what there is, and what fits this machine
  outpost profile check kiosk-x86        line by line, with numbers; exit code 1 if it does not fit
  outpost profile use kiosk-x86          from the next start on
  outpost profile show > mine.toml       a file to change; then: outpost profile use ./mine.toml
  outpost serve --profile npu-onnx       this once
"""

Verbs = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def register(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Add `profile` and its actions to the command line."""
    parser = verbs.add_parser(
        "profile",
        help="show, check and choose what a class of machines should run",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, action=None, json=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="every profile, and whether it fits (this is also what no ACTION does)")
    showing = actions.add_parser("show", help="print a profile's text; that in use without a NAME")
    checking = actions.add_parser("check", help="does this machine fit? that in use without a NAME")
    using = actions.add_parser("use", help="use a profile from the next start on")
    for action in (showing, checking, using):
        action.add_argument("name", metavar="NAME|FILE", nargs="?", help="from `outpost profile list`, or a .toml file")
    using.add_argument("--none", action="store_true", help="use no profile from the next start on")
    using.add_argument(
        "--unchecked", action="store_true", help="although it does not fit here: to prepare an image for other machines"
    )
    for action in (listing, checking):
        action.add_argument("--json", action="store_true", help="print JSON for other programs")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code: 1 if `check` finds that the machine does not fit."""
    match args.action:
        case "show":
            print(_named(args.name).text, end="")
            return 0
        case "check":
            return _check(_named(args.name), args.json)
        case "use":
            return _use(args.name, none=args.none, unchecked=args.unchecked)
        case _:
            return _list(args.json)


def _named(name: str | None) -> Profile:
    profile = profiles.chosen(name)
    if profile is None:
        raise SettingsError("No profile is in use.", hint="Name one; `outpost profile list` shows them.")
    return profile


def _machine() -> Hardware:
    return hardware.inspect(settings.home(), nvml=load_nvml())


def _list(as_json: bool) -> int:
    machine, used = _machine(), profiles.in_use()
    known = profiles.shipped()
    if used is not None and used.text not in [profile.text for profile in known]:
        known = [*known, used]
    rows = [(profile, list(examine(profile, machine))) for profile in known]
    if as_json:
        body = [_described(profile, checks, profile.text == getattr(used, "text", None)) for profile, checks in rows]
        print(json.dumps(body, indent=2))
        return 0
    print("\n".join(listing(rows, used)))
    print(f"\n* in use, from {profiles.in_use_file()}" if used else "\nNone is in use; the defaults count.")
    return 0


def _described(profile: Profile, checks: list[Check], used: bool) -> dict[str, object]:
    return {
        "name": profile.name,
        "description": profile.description,
        "model": _model(profile),
        "engine": profile.settings.engine.kind,
        "fits": fits(checks),
        "in_use": used,
        "checks": [asdict(check) for check in checks],
    }


def listing(rows: list[tuple[Profile, list[Check]]], used: Profile | None) -> list[str]:
    """Profiles as lines: name, model, verdict; below it the description and what does not fit."""
    names = ["PROFILE", *(profile.name for profile, _ in rows)]
    models = ["MODEL", *(_model(profile) for profile, _ in rows)]
    first, second = max(map(len, names)), max(map(len, models))
    lines = [f"  {names[0]:<{first}}  {models[0]:<{second}}  THIS MACHINE"]
    for name, model, (profile, checks) in zip(names[1:], models[1:], rows, strict=True):
        mark = "*" if used is not None and profile.text == used.text else " "
        lines.append(f"{mark} {name:<{first}}  {model:<{second}}  {'fits' if fits(checks) else 'does not fit'}")
        lines.append(f"    {profile.description}")
        lines += [f"    - {check.name}: {check.found}" for check in checks if check.state == "fail"]
    return lines


def _model(profile: Profile) -> str:
    return "none" if profile.settings.engine.kind == "echo" else profile.settings.model.name


def fits(checks: list[Check]) -> bool:
    """Whether nothing of it keeps this machine from using the profile."""
    return all(check.state != "fail" for check in checks)


def _check(profile: Profile, as_json: bool) -> int:
    checks = list(examine(profile, _machine(), thorough=True))
    if as_json:
        print(json.dumps(_described(profile, checks, profile == profiles.in_use()), indent=2))
    else:
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        verdict = "This machine fits." if fits(checks) else "This machine does not fit."
        print("\n".join([f"{profile.name}: {profile.description}", "", *table(checks, colours), "", verdict]))
    return 0 if fits(checks) else 1


def _use(name: str | None, *, none: bool, unchecked: bool) -> int:
    if none:
        print("No profile is in use any more." if profiles.use_none() else "No profile was in use.")
        return 0
    if name is None:
        raise SettingsError("`outpost profile use` wants a NAME, a FILE or --none.")
    profile = profiles.find(name)
    layers.load(profile=profile.layer)  # this node's own settings must go with it
    if not unchecked:
        fit.refuse_other_hardware(profile, _machine())
    profiles.use(profile)
    print(f"{profile.name} is in use from the next start on: {profiles.in_use_file()}")
    return 0


def examine(profile: Profile, machine: Hardware, *, thorough: bool = False) -> Iterator[Check]:
    """Everything that the profile asks for, a line each; with `thorough` the model's file is hashed."""
    for need in fit.needs(profile, machine):
        yield _check_of(need)
    try:
        # What tuning found counts below the profile; it takes a look at the files, which a list can do without.
        known = layers.load(profile=profile.layer, tuned=tuned.layer if thorough else None)
    except NodeError as error:
        yield Check("settings", "fail", f"it does not go with this node's own: {error.message}", error.hint or "")
        return
    if known.engine.kind == "llama":
        yield from _examine_model(profile, known, machine, thorough)


def _examine_model(profile: Profile, known: Settings, machine: Hardware, thorough: bool) -> Iterator[Check]:
    try:
        path = weights.served(known.model)
        header = gguf.read(path)
        with bars() as progress:
            compared = refuse_other_model(profile, known, progress, thorough=thorough)
    except NodeError as error:
        missing = not isinstance(error, SettingsError) and "not installed" in error.message
        yield Check("model", "warn" if missing else "fail", error.message, error.hint or "")
        return
    promised = ", the file that the profile names" if compared and thorough else ""
    yield Check("model", "ok", f"{path}{promised}")
    taken = _footprint(known, header, machine)
    for need in fit.memory_needs(taken, machine):
        yield _check_of(need)
    for part in taken.parts if thorough else ():
        yield Check(f"  {part.name}", "ok", f"{part.bytes / MIB:,.0f} MiB: {part.detail}")


def _check_of(need: fit.Need) -> Check:
    return Check(need.name, "ok" if need.enough else "fail", f"{need.has} (needs {need.needs})")


def _footprint(known: Settings, header: gguf.Summary, machine: Hardware) -> Footprint:
    threads = known.engine.threads or machine.usable_cores
    offloads = bool(machine.gpus) and probe_library().gpu
    gpu = fit.gpu_use(known.engine, machine.gpus, offloads=offloads)
    return footprint(header, known, threads, machine.features, gpu)
