"""How settings are read: defaults < tuned.toml < profile < node.toml < OUTPOST_… environment < flags.

An unknown key is an error.

Environment names are `OUTPOST_<SECTION>_<KEY>`; a list is written with commas. `OUTPOST_HOME` moves the data directory
and `OUTPOST_CONFIG` names the file.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import logging
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from node.errors import SettingsError
from node.ranges import MOST_SLOTS, RANGES
from node.redact import Redactor
from node.settings import SECTIONS, Cloud, Engine, Hub, Outbox, Section, Settings

log = logging.getLogger(__name__)

# section -> key -> value
Tree = Mapping[str, Mapping[str, Any]]

_RESERVED = {"OUTPOST_HOME", "OUTPOST_CONFIG"}
_MAX_FILE_BYTES = 1 << 20


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    profile: Tree | None = None,
    tuned: Callable[[Settings], Tree] | None = None,
) -> Settings:
    """Join the layers; `flags` maps "section.key" to text. Raises SettingsError, which names the layer and the key.

    `profile` has sections of keys that were checked where it was read. `tuned` is asked last, because it depends on the
    model that the others name, but lies under them.
    """
    tree = _join(file, environment, flags, profile)
    settings = _convert(tree, "settings")
    check(settings)
    return _tune(settings, tree, tuned(settings)) if tuned else settings


def chosen(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    profile: Tree | None = None,
) -> frozenset[str]:
    """The keys that an operator or a profile has set, as "section.key"."""
    tree = _join(file, environment, flags, profile)
    return frozenset(f"{section}.{key}" for section, keys in tree.items() for key in keys)


def _join(
    file: Path | None, environment: Mapping[str, str] | None, flags: Mapping[str, str] | None, profile: Tree | None
) -> dict[str, dict[str, Any]]:
    environment = os.environ if environment is None else environment
    tree: dict[str, dict[str, Any]] = {section: dict(values) for section, values in (profile or {}).items()}
    for layer, source in (
        (_read_file(file, environment), "node.toml"),
        (_from_environment(environment), "the environment"),
        (_from_flags(flags or {}), "the command line"),
    ):
        _convert(layer, source)  # so that an error names the layer it comes from
        for section, values in layer.items():
            tree.setdefault(section, {}).update(values)
    return tree


def _tune(settings: Settings, tree: Tree, tuned: Tree) -> Settings:
    """The settings with `tuned` below all else; as they were where the two do not go together."""
    joined = {section: {**tuned.get(section, {}), **tree.get(section, {})} for section in {**tree, **tuned}}
    try:
        both = _convert(joined, "tuned.toml")
        check(both)
    except SettingsError as error:
        log.warning("tuned.toml is ignored", extra={"reason": error.message})
        return settings
    return both


def describe() -> list[tuple[str, str, str]]:
    """Every key as (section.key, default, meaning)."""
    return [
        (f"{name}.{key}", _show(getattr(section(), key)), text)
        for name, section in SECTIONS.items()
        for key, text in _meanings(section).items()
    ]


@functools.cache
def _meanings(section: type[Section]) -> dict[str, str]:
    """The string after each key of a section's class body."""
    tree = ast.parse(inspect.getsource(section))
    body = tree.body[0].body  # type: ignore[attr-defined]  # the one class that was parsed
    return {
        key.target.id: ast.literal_eval(text.value)
        for key, text in itertools.pairwise(body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(text, ast.Expr)
    }


def _show(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _read_file(file: Path | None, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    named = file or (Path(environment["OUTPOST_CONFIG"]) if environment.get("OUTPOST_CONFIG") else None)
    path = named or Path("node.toml")
    if not path.exists() and named is None:
        return {}
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise SettingsError(f"{path} is larger than a settings file can be ({_MAX_FILE_BYTES} bytes).")
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error
    if loose := [key for key, value in tree.items() if not isinstance(value, dict)]:
        raise SettingsError(f"{path}: `{loose[0]}` stands outside any section. {_known()}")
    return tree


def _from_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    named = {name: value for name, value in environment.items() if name.startswith("OUTPOST_")}
    flat = {}
    for name, value in named.items():
        if name in _RESERVED:
            continue
        section, _, key = name.removeprefix("OUTPOST_").lower().partition("_")
        flat[f"{section}.{key}"] = value
    return _from_flags(flat)


def _from_flags(flags: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = {}
    for name, text in flags.items():
        section, _, key = name.partition(".")
        known = SECTIONS.get(section)
        if known is None or key not in known.__struct_fields__:
            raise SettingsError(f"There is no setting `{name}`. {_known()}")
        is_list = isinstance(getattr(known(), key), tuple)
        tree.setdefault(section, {})[key] = tuple(filter(None, text.split(","))) if is_list else text
    return tree


def _convert(tree: Mapping[str, Any], source: str) -> Settings:
    try:
        return msgspec.convert(tree, Settings, strict=source == "node.toml")
    except msgspec.ValidationError as error:
        raise SettingsError(f"In {source}: {error}. {_known()}") from error


def _known() -> str:
    return "`outpost serve --help` lists every setting."


def check(settings: Settings) -> None:
    """Refuse what no single key can show: ranges, pairs, and an open door without a key."""
    for (section, key), (least, most) in RANGES.items():
        value = getattr(getattr(settings, section), key)
        if not least <= value <= most:
            raise SettingsError(f"{section}.{key} must be between {least:g} and {most:g}, not {value:g}.")
    _check_engine(settings.engine)
    _check_cloud(settings.cloud)
    server = settings.server
    if bool(server.tls_certificate) != bool(server.tls_key):
        raise SettingsError("server.tls_certificate and server.tls_key must be set together.")
    if any(len(key) < 16 for key in server.api_keys):
        raise SettingsError(
            "An API key must have at least 16 characters.",
            hint="Make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(24))'",
        )
    if not (server.on_loopback or server.api_keys or settings.limits.quota_file):
        raise SettingsError(
            f"server.host is {server.host}, which others can reach, but no API key is set.",
            hint="Set server.api_keys or limits.quota_file, or listen on 127.0.0.1.",
        )
    _check_hub(settings.hub)
    _check_callbacks(settings.outbox)


def _check_hub(hub: Hub) -> None:
    if hub.url and not _is_safe(hub.url):
        raise SettingsError("hub.url must be an https:// address, or http:// on this machine.")
    if hub.key and hub.key_file:
        raise SettingsError("Only one of hub.key and hub.key_file can be set.")
    if not (hub.key.isascii() and (not hub.key or hub.key.isprintable())):
        raise SettingsError("hub.key must be printable ASCII.")
    if hub.url and hub.node:
        raise SettingsError("Only one of hub.url and hub.node can be set.")
    if hub.telemetry_s and not (hub.url or hub.node):
        raise SettingsError("hub.telemetry_s is set, but no hub to tell (hub.url or hub.node).")
    if 0 < hub.telemetry_s < 1:
        raise SettingsError("hub.telemetry_s must be 0 or at least 1 second.")


def _check_callbacks(outbox: Outbox) -> None:
    if wrong := [prefix for prefix in outbox.callbacks if not _is_address(prefix)]:
        raise SettingsError(f"outbox.callbacks: `{wrong[0]}` is not the beginning of an http(s) address.")
    if outbox.callbacks and not outbox.callback_secret_file:
        raise SettingsError("outbox.callbacks needs outbox.callback_secret_file, which the calls are signed with.")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:
        return False


def _is_safe(url: str) -> bool:
    """A key must not travel in the clear."""
    here = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost") if _is_address(url) else False
    return _is_address(url) and (here or url.startswith("https://"))


def _check_engine(engine: Engine) -> None:
    if engine.kind != "echo" and engine.slots > MOST_SLOTS:
        raise SettingsError(f"engine.slots must be between 1 and {MOST_SLOTS}, not {engine.slots}.")
    if engine.batch < engine.slots:
        raise SettingsError(f"engine.batch is {engine.batch}, but {engine.slots} slots make as many tokens a step.")
    if engine.ubatch > engine.batch:
        raise SettingsError(f"engine.ubatch ({engine.ubatch}) cannot be more than engine.batch ({engine.batch}).")
    if engine.flash_attention == "off" and engine.kv_type in ("q8_0", "q4_0"):
        raise SettingsError(
            f"A KV cache of {engine.kv_type} needs flash attention, but engine.flash_attention is off.",
            hint="Set engine.kv_type to f16, or engine.flash_attention to auto.",
        )


def _check_cloud(cloud: Cloud) -> None:
    if cloud.url and not re.fullmatch(r"https?://[^\s/@?#]+(?:/[^\s?#]*)?", cloud.url):
        raise SettingsError(f"cloud.url must be like https://example.com/v1, not {cloud.url}.")
    try:
        Redactor(cloud.redact)
    except ValueError as error:
        raise SettingsError(f"cloud.redact: {error}.") from error
