"""`outpost serve`: run a node in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from node import layers
from node import settings as settings_module
from node.commands.models import bars
from node.errors import EngineFailed, OperatorError, SettingsError
from node.fleet import fit, profiles
from node.fleet.boot import Upkeep
from node.fleet.profile import Profile
from node.fleet.verify import refuse_other_model
from node.machine import hardware
from node.machine.gpu import load_nvml
from node.runtime import Node
from node.tuning import auto, tuned

_SHORT = {
    "host": ("server.host", "ADDRESS", "address to listen on"),
    "port": ("server.port", "N", "TCP port; 0 picks a free one"),
    "model": (
        "model.name",
        "NAME",
        "a name from `outpost models list`, or a GGUF file, or a folder with an ONNX model",
    ),
    "engine": ("engine.kind", "KIND", "llama, onnx or echo"),
    "slots": ("engine.slots", "N", "requests that run at the same time"),
    "role": ("hub.role", "ROLE", "node, or hub: also receive the outboxes of other nodes"),
    "serial": ("link.serial", "DEVICE", "answer on this serial line, too, e.g. /dev/ttyUSB0"),
    "threads": ("engine.threads", "N", "CPU threads; 0 takes the cores this process may use"),
}


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve` with its flags; the epilogue lists every setting."""
    parser = verbs.add_parser(
        "serve",
        help="run a node: the model, the OpenAI API and the chat page",
        description="Run a node until SIGTERM or Ctrl-C; running answers are finished first.",
        epilog=_all_settings(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings_flags(parser)
    parser.set_defaults(run=run)


def add_settings_flags(parser: argparse.ArgumentParser) -> None:
    """The flags by which a command line changes settings."""
    parser.add_argument(
        "--profile", metavar="NAME|FILE", help="from `outpost profile list` (default: that of `outpost profile use`)"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (default: ./node.toml if it exists)")
    for flag, (_, metavar, text) in _SHORT.items():
        parser.add_argument(f"--{flag}", metavar=metavar, help=text)
    parser.add_argument("--link", action="store_true", help="let clients open links over UDP (link.enabled)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, e.g. --set queue.max_waiting=16"
    )


def load_settings(
    args: argparse.Namespace,
    profile: Profile | None = None,
    tuned: Callable[[settings_module.Settings], layers.Tree] | None = None,
) -> settings_module.Settings:
    """Settings from all layers, with the flags of `add_settings_flags` on top and `tuned` below them."""
    flags = settings_flags(args)
    return layers.load(args.config, flags=flags, profile=profile.layer if profile else None, tuned=tuned)


def settings_flags(args: argparse.Namespace) -> dict[str, str]:
    """What the flags of `add_settings_flags` say, as "section.key" and text. Raises SettingsError."""
    flags = {key: str(value) for flag, (key, *_) in _SHORT.items() if (value := getattr(args, flag)) is not None}
    if args.link:
        flags["link.enabled"] = "true"
    for pair in args.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set takes KEY=VALUE, not `{pair}`.")
        flags[key] = value
    return flags


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    from node import log

    own = load_settings(args, profiles.chosen(args.profile))
    log.configure(own.log.level)
    if args.profile and own.fleet.url:
        raise SettingsError(
            "--profile and fleet.url exclude each other: the fleet says which profile this node has.",
            hint="`outpost profile use` says with which one it begins.",
        )
    asyncio.run(_serve(args, own))
    return 0


async def _serve(args: argparse.Namespace, own: settings_module.Settings) -> None:
    """With the profile that is in charge; where that does not come up, with the next best one."""
    lasts = own.server.port and not args.profile  # a profile for this once changes nothing for good
    upkeep = Upkeep(
        lambda profile: load_settings(args, profile, tuned.layer),
        lambda: profiles.chosen(args.profile),
        settings_module.home() / f"fleet-{own.server.port}.db" if lasts else None,
    )
    await upkeep.open()
    try:
        while not await _started(args, upkeep):
            pass
    finally:
        await upkeep.close()


async def _started(args: argparse.Namespace, upkeep: Upkeep) -> bool:
    """Serve until a signal; False where it did not start, and something else is to be tried."""
    node: Node | None = None
    try:
        settings = await upkeep.prepare()
        logging.getLogger().setLevel(settings.log.level.upper())  # the tuned layer has said whether it counts by then
        if upkeep.profile and not upkeep.pinned:
            await asyncio.to_thread(_check_profile, upkeep.profile, settings)
        node = Node(settings, auto.command(_repeated(args)), upkeep=upkeep)
        asks = bool(settings.server.api_keys or settings.limits.quota_file)
        await node.serve_until_signal(partial(_announce, asks=asks))
    except (OperatorError, EngineFailed) as error:
        # Whatever happens to a node that has started, and a port that is taken, is no fault of the profile's.
        if (node is not None and (node.started or isinstance(error, SettingsError))) or not await upkeep.fall_back(
            error
        ):
            raise
        return False
    return True


def _repeated(args: argparse.Namespace) -> list[str]:
    """The flags by which another verb gets the same settings."""
    flags = [("--config", args.config), ("--profile", args.profile)]
    named = [word for flag, value in flags if value for word in (flag, str(value))]
    return named + [word for key, value in settings_flags(args).items() for word in ("--set", f"{key}={value}")]


def _check_profile(profile: Profile, settings: settings_module.Settings) -> None:
    """Refuse what this machine or its model file is not; an earlier node goes on serving."""
    fit.refuse_other_hardware(profile, hardware.inspect(settings_module.home(), nvml=load_nvml()))
    with bars() as progress:
        refuse_other_model(profile, settings, progress)


def _announce(node: Node, *, asks: bool = False) -> None:
    """The addresses to try; where a node asks for keys, with the place of one."""
    print(f"\n  {node.model.info.id} answers at {node.url}\n", file=sys.stderr)
    print(f"  page   {node.url}/", file=sys.stderr)
    body = f'{{"model": "{node.model.info.id}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    print(f"  curl   curl -N {node.url}/v1/chat/completions -H 'content-type: application/json' \\", file=sys.stderr)
    if asks:
        print('           -H "authorization: Bearer $KEY" \\', file=sys.stderr)
    print(f"           -d '{body}'", file=sys.stderr)
    print("  stop   Ctrl-C\n", file=sys.stderr, flush=True)


def _all_settings() -> str:
    lines = ["settings, for node.toml, --set or OUTPOST_SECTION_KEY (default in brackets):", ""]
    lines += [f"  {key:<26} {text} [{default}]" for key, default, text in layers.describe()]
    return "\n".join(lines)
