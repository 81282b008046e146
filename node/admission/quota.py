"""The quota file: who holds which key, how urgently each may ask, and how much it may use. Pure: TOML text to values.

    [default]                        # keys that are not named here, and everybody where no key is asked for
    ceiling = "interactive"          # the most urgent level it may ask for
    limits = { output_tokens_per_minute = 6000 }

    [tenants.acme]
    limits = { output_tokens_per_minute = 60000 }          # all of its keys together
    key_limits = { requests_per_minute = 600 }             # each key that has no limits of its own

    [tenants.acme.keys.alice]
    key_sha256 = "…"                 # or key = "…", of which only the digest is kept
    level = "interactive"            # what a request runs at that names no level
    ceiling = "critical"
    limits = { prompt_tokens_per_minute = 20000, output_tokens_per_minute = 6000, burst = 0.5 }
    session_limits = { output_tokens_per_minute = 2000 }   # each conversation
    model_limits.smollm2-135m-instruct = { requests_per_minute = 60 }

Every limit may also have `burst`, `steady` and `fade_s`, which `account` explains.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from node.admission.account import Rates
from node.admission.limits import Allowance
from node.errors import SettingsError
from node.generation import LEVELS, Level

MOST_BYTES = 1 << 20
MOST_KEYS = 10_000
LEAST_KEY_LENGTH = 16
MOST_DOTS = 64  # in a line: names of at most 64 characters in tables six deep
MOST_PARTS = 20 * MOST_KEYS  # dots, tables and lines in all: tomllib takes about a kilobyte for each

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table that knows its keys."""


class _Limits(_Strict, frozen=True):
    requests_per_minute: float | None = None
    prompt_tokens_per_minute: float | None = None
    output_tokens_per_minute: float | None = None
    burst: float = 0.5
    steady: float = 1.0
    fade_s: float = 300.0


class _Holder(_Strict, frozen=True):
    level: Level = "standard"
    ceiling: Level = "interactive"
    limits: Any = None
    session_limits: Any = None
    model_limits: dict[str, Any] = {}


class _Key(_Holder, frozen=True):
    key: str | None = None
    key_sha256: str | None = None


class _Tenant(_Strict, frozen=True):
    limits: Any = None
    key_limits: Any = None
    session_limits: Any = None
    keys: dict[str, Any] = {}


class _File(_Strict, frozen=True):
    default: dict[str, Any] = {}
    tenants: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a key: names of the operator's choice, the level without a wish and the highest, and the limits."""

    tenant: str = ""
    name: str = ""
    level: Level = "standard"
    ceiling: Level = "critical"
    _any_model: Allowance = field(default_factory=Allowance)
    _by_model: Mapping[str, Allowance] = field(default_factory=dict)

    def allowance(self, model: str) -> Allowance:
        """The limits of its requests for this model."""
        return self._by_model.get(model, self._any_model)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Holders by the SHA-256 of their keys, in hexadecimal, and everybody else. Without a file nothing is limited."""

    holders: Mapping[str, Holder] = field(default_factory=dict)
    default: Holder = field(default_factory=Holder)

    def holder(self, digest: str) -> Holder:
        """Whose key it is."""
        return self.holders.get(digest, self.default)


def parse(text: str, source: str = "the quota file") -> Quotas:
    """Read it whole, or raise a SettingsError that names the line and the key."""
    if len(text) > MOST_BYTES:
        raise SettingsError(f"{source} is larger than a quota file can be ({MOST_BYTES} bytes).")
    _check_size(text, source)
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib lets Python's own limits on digits and depth through
        raise SettingsError(f"{source} is not valid TOML: {str(error).rstrip('.')}.") from error
    return _Reader(text, source).quotas(tree)


def _check_size(text: str, source: str) -> None:
    """Refuse what a megabyte of text can make of tomllib: gigabytes of nested tables, or minutes."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MOST_DOTS:
            raise SettingsError(f"In {source}, line {number}: no key of a quota file has more than {MOST_DOTS} dots.")
    if sum(map(text.count, ".[{\n")) > MOST_PARTS:
        raise SettingsError(f"{source} has more tables than a quota file with {MOST_KEYS} keys can have.")


_Table = TypeVar("_Table", bound=msgspec.Struct)
_Path = tuple[str, ...]


class _Reader:
    """Turns tables into values; knows the text, to say where something is wrong."""

    def __init__(self, text: str, source: str) -> None:
        self._lines = text.splitlines()
        self._source = source
        self._count = 0

    def quotas(self, tree: Mapping[str, Any]) -> Quotas:
        file = self._table(tree, _File, ())
        default = self._holder(self._table(file.default, _Holder, ("default",)), ("default",), _Tenant(), None)
        holders: dict[str, Holder] = {}
        for name, table in file.tenants.items():
            path = ("tenants", name)
            self._check_name(name, path)
            tenant = self._table(table, _Tenant, path)
            cap = self._rates(tenant.limits, (*path, "limits"))
            for key_name, key_table in tenant.keys.items():
                key_path = (*path, "keys", key_name)
                self._check_name(key_name, key_path)
                key = self._table(key_table, _Key, key_path)
                digest = self._digest(key, key_path)
                if digest in holders:
                    other = holders[digest]
                    raise self._wrong(key_path, f"holds the same key as {other.tenant}'s {other.name}")
                holders[digest] = self._holder(key, key_path, tenant, cap)
                if len(holders) > MOST_KEYS:
                    raise self._wrong(key_path, f"is one more than the {MOST_KEYS} keys that a file can have")
        return Quotas(holders, default)

    def _holder(self, table: _Holder, path: _Path, tenant: _Tenant, cap: Rates | None) -> Holder:
        if LEVELS.index(table.level) < LEVELS.index(table.ceiling):
            raise self._wrong((*path, "level"), f"{table.level} is above its ceiling, {table.ceiling}")
        inherited = path[:2]
        user = self._rates(table.limits, (*path, "limits"))
        if table.limits is None:
            user = self._rates(tenant.key_limits, (*inherited, "key_limits"))
        session = self._rates(table.session_limits, (*path, "session_limits"))
        if table.session_limits is None:
            session = self._rates(tenant.session_limits, (*inherited, "session_limits"))
        by_model = {
            model: Allowance(cap, user, self._rates(limits, (*path, "model_limits", model)), session)
            for model, limits in table.model_limits.items()
        }
        name, owner = (path[3], path[1]) if len(path) > 3 else ("", "")
        return Holder(owner, name, table.level, table.ceiling, Allowance(cap, user, None, session), by_model)

    def _rates(self, table: Any, path: _Path) -> Rates | None:
        if table is None:
            return None
        limits = self._table(table, _Limits, path)
        try:
            return Rates(
                limits.requests_per_minute,
                limits.prompt_tokens_per_minute,
                limits.output_tokens_per_minute,
                limits.burst,
                limits.steady,
                limits.fade_s,
            )
        except ValueError as error:
            raise self._wrong(path, str(error)) from error

    def _digest(self, key: _Key, path: _Path) -> str:
        if (key.key is None) == (key.key_sha256 is None):
            raise self._wrong(path, "needs either key or key_sha256")
        if key.key is not None:
            if len(key.key) < LEAST_KEY_LENGTH:
                raise self._wrong((*path, "key"), f"must have at least {LEAST_KEY_LENGTH} characters")
            return hashlib.sha256(key.key.encode("utf-8", "surrogateescape")).hexdigest()
        digest = (key.key_sha256 or "").lower()
        if not _DIGEST.fullmatch(digest):
            raise self._wrong((*path, "key_sha256"), "must be 64 hexadecimal digits, as sha256sum prints them")
        return digest

    def _check_name(self, name: str, path: _Path) -> None:
        if not _NAME.fullmatch(name):
            raise self._wrong(path, "is no name: letters, digits, `_`, `.` and `-`, at most 64")

    def _table(self, table: Any, kind: type[_Table], path: _Path) -> _Table:
        """As a Struct; a wrong field is named with its line, and with the one that was probably meant."""
        if isinstance(table, dict):
            known = kind.__struct_fields__
            for name in table:
                if name not in known:
                    close = difflib.get_close_matches(name, known, 1)
                    meant = f"; did you mean `{close[0]}`?" if close else f"; there are {', '.join(known)}"
                    raise self._wrong((*path, name), f"is not known{meant}")
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at `$.")
            inner = re.split(r"[.\[]", where.rstrip("`"))[:1] if where else []
            raise self._wrong((*path, *inner), message) from error

    def _wrong(self, path: _Path, what: str) -> SettingsError:
        line = _line_of(path, self._lines)
        where = f"{self._source}, line {line}" if line else self._source
        return SettingsError(f"In {where}: `{'.'.join(path)}` {what[:1].lower()}{what[1:].rstrip('.')}.")


def _line_of(path: Sequence[str], lines: Sequence[str]) -> int | None:
    """Where the last part of `path` most probably stands: the first mention of it after the mentions of its parents.

    tomllib tells no positions of what is well-formed; a path may be spread over headers, dotted keys and inline tables.
    """
    line, column = 0, 0
    for part in path:
        word = re.compile(rf"(?<![\w-]){re.escape(part)}(?![\w-])")
        for number in range(line, len(lines)):
            bare = lines[number].partition("#")[0]
            if found := word.search(bare, column if number == line else 0):
                line, column = number, found.end()
                break
        else:
            return None
    return line + 1 if path else None
