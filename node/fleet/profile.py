"""A profile: what it says, and every mistake in it with its line.

    name = "kiosk-x86"              what people type
    description = "…"               one line
    model_sha256 = "…"              optional: of the file that settings.model.name means

    [minimum]                       the least hardware; what is left out is not asked for
    architectures = ["x86_64"]      any of these, as `uname -m` says
    features = ["avx2"]             all of these, as `outpost doctor` says
    cores = 2                       that this process may use
    memory_mib = 1024               of the machine or the container; what the model needs is computed besides
    gpu_memory_mib = 0              of one GPU
    npus = ["Intel NPU"]            any of these, as `outpost doctor` says

    [settings.engine]               the sections and keys of node.toml
    slots = 4

    [[golden]], [floor]             what the model must answer, and how fast, before the profile is kept (`golden`)

A layer of settings: it stands above the defaults and below everything that this node itself says. What belongs to one
node alone (its address, keys, certificates, files) cannot stand in a profile.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from node import layers
from node.errors import SettingsError
from node.fleet import golden
from node.fleet.golden import MOST_GOLDEN, NO_FLOOR, Floor, Golden, Goldens
from node.fleet.lines import Path, line_of, lines_of
from node.machine.cpu import FEATURES
from node.machine.npu import KINDS
from node.ranges import RANGES
from node.settings import Settings

MAX_BYTES = 64 << 10
_MOST_SHOWN = 8
# What belongs to one node, or is a secret.
OWN = frozenset(
    {
        *("server.host", "server.port", "server.api_keys", "server.tls_certificate", "server.tls_key"),
        *("link.port", "link.public_port", "link.serial", "limits.quota_file", "streams.database", "prewarm.folder"),
        *("fleet.url", "fleet.root", "fleet.mirror", "fleet.ca_file", "fleet.allow_http", "fleet.ring"),
        *("fleet.wake_url", "fleet.wake_login_file", "fleet.wake_ca_file", "fleet.wake_certificate", "fleet.wake_key"),
        *("fleet.metered", "fleet.metered_bytes", "fleet.unmetered_bytes"),
        *("engine.oversize", "model.variant", "cloud.api_key_file", "cloud.api_key_env"),
        *("outbox.database", "outbox.callback_secret_file", "hub.role", "hub.key", "hub.key_file", "hub.ca_file"),
        *("mesh.port", "mesh.interfaces", "mesh.peers"),
    }
)


def _text(pattern: str, form: str) -> msgspec.Meta:
    return msgspec.Meta(pattern=rf"\A{pattern}\Z", description=form)


Id = Annotated[str, _text("[a-z0-9][a-z0-9-]{0,63}", "lower-case letters, digits and dashes, at most 64")]
Line = Annotated[str, _text(r"[^\x00-\x1f\x7f]{1,200}", "one line of at most 200 characters")]
Sha256 = Annotated[str, _text("([0-9a-f]{64})?", "64 hexadecimal digits")]
Architecture = Annotated[str, _text("[a-z0-9_]{1,32}", "what `uname -m` says")]
Architectures = Annotated[tuple[Architecture, ...], msgspec.Meta(max_length=16)]
Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=64)]
Cores = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Mebibytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]


class Minimum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The least hardware. Empty lists and 0 ask for nothing."""

    architectures: Architectures = ()
    features: Names = ()
    cores: Cores = 1
    memory_mib: Mebibytes = 0
    gpu_memory_mib: Mebibytes = 0
    npus: Names = ()


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Id
    description: Line
    model_sha256: Sha256 = ""
    minimum: Minimum = Minimum()
    settings: Settings = Settings()
    golden: Goldens = ()
    floor: Floor = Floor()


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile without mistakes. `layer` has the settings that it names, by section; `settings` has all of them."""

    name: str
    description: str
    model_sha256: str
    minimum: Minimum
    layer: Mapping[str, Mapping[str, Any]]
    settings: Settings
    text: str
    source: str
    golden: tuple[Golden, ...] = ()
    floor: Floor = NO_FLOOR


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake: where it stands, and what it is."""

    line: int
    key: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.key + ': ' if self.key else ''}{self.message}"


def parse(text: str, source: str) -> Profile:
    """Read a profile; raises SettingsError with every mistake, each with its line. `source` names the text."""
    if problems := find_problems(text):
        shown = [f"{source}, {problem}" for problem in problems[:_MOST_SHOWN]]
        more = len(problems) - len(shown)
        raise SettingsError("\n".join([*shown, *([f"and {more} more"] if more else [])]))
    tree = tomllib.loads(text)
    known = msgspec.convert(tree, _Document)
    layer = {section: dict(values) for section, values in tree.get("settings", {}).items()}
    head = known.name, known.description, known.model_sha256, known.minimum
    return Profile(*head, layer, known.settings, text, source, known.golden, known.floor)


def find_problems(text: str) -> list[Problem]:
    """Every mistake, in the order of their lines; none in a profile that can be used."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        return [Problem(1, "", f"it is larger than a profile can be ({MAX_BYTES} bytes)")]
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [_not_toml(text, str(error))]
    except ValueError as error:  # a number of thousands of digits
        return [Problem(1, "", f"it holds a value that cannot be: {error}")]
    except RecursionError:
        return [Problem(1, "", "it is nested too deeply")]
    lines = lines_of(text)
    found = [*_mistakes(_Document, tree, ()), *_own_keys(tree), *_out_of_range(tree), *_unknown_names(tree)]
    if not found:
        found = list(_impossible(tree))
    problems = [Problem(line_of(lines, path), ".".join(path), message) for path, message in found]
    return sorted(problems, key=lambda problem: problem.line)


def _not_toml(text: str, message: str) -> Problem:
    where = re.search(r" \(at line (\d+), column \d+\)", message)
    line = int(where[1]) if where else text.count("\n") + 1
    return Problem(line, "", f"not valid TOML: {message.partition(' (at ')[0]}")


def _mistakes(kind: type[msgspec.Struct], table: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Unknown and missing keys, and values of the wrong kind, each by itself; msgspec alone stops at the first."""
    if not isinstance(table, dict):
        yield path, "it must be a table"
        return
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in table.keys() - fields.keys():
        near = difflib.get_close_matches(key, fields, 1)
        yield (*path, key), "there is no such key" + (f"; did you mean {near[0]}?" if near else "")
    for name, field in fields.items():
        if name not in table:
            if field.required:
                yield path, f"`{name}` is missing"
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _mistakes(field.type, table[name], (*path, name))
        elif field.type is Goldens and _are_tables(table[name]):
            for index, one in enumerate(table[name]):
                yield from _mistakes(Golden, one, (*path, name, str(index)))
        else:
            yield from _misfit(field.type, table[name], (*path, name))


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_GOLDEN and all(isinstance(one, dict) for one in value)


def _misfit(kind: Any, value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        yield path, _in_words(kind, str(error))


def _in_words(kind: Any, message: str) -> str:
    """msgspec's message, but for forms and choices, which it shows as it keeps them."""
    if get_origin(kind) is Literal:
        return f"it must be one of {', '.join(map(str, get_args(kind)))}"
    forms = [meta.description for meta in getattr(kind, "__metadata__", ()) if meta.description]
    return f"it must be {forms[0]}" if forms and "regex" in message else message.partition(" - at ")[0]


def _own_keys(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for section, key, _ in _settings(tree):
        if f"{section}.{key}" in OWN:
            yield ("settings", section, key), "this belongs to one node alone and cannot stand in a profile"


def _out_of_range(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for section, key, value in _settings(tree):
        least, most = RANGES.get((section, key), (value, value))
        if isinstance(value, int | float) and not isinstance(value, bool) and not least <= value <= most:
            yield ("settings", section, key), f"it must be between {least:g} and {most:g}, not {value:g}"


def _settings(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    settings = tree.get("settings")
    for section, table in settings.items() if isinstance(settings, dict) else ():
        for key, value in table.items() if isinstance(table, dict) else ():
            yield section, key, value


def _unknown_names(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    minimum = tree.get("minimum")
    for key, known in (("features", FEATURES), ("npus", KINDS)):
        named = minimum.get(key) if isinstance(minimum, dict) else None
        for name in named if isinstance(named, list) else ():
            if isinstance(name, str) and name not in known:
                yield ("minimum", key), f"`{name}` is not known; there are {', '.join(known)}"


def _impossible(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """What is right by itself but not together."""
    yield from golden.mistakes(msgspec.convert(tree, _Document).golden)
    try:
        layers.check(msgspec.convert(tree, _Document).settings)
    except SettingsError as error:
        named = re.findall(r"\b([a-z_]+)\.([a-z_]+)\b", error.message)
        said = [(section, key) for section, key, _ in _settings(tree) if (section, key) in named]
        yield ("settings", *(said[0] if said else ())), error.message
