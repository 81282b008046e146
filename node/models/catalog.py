"""What models exist: the shipped `catalog.toml` and the user's own one in the data directory, checked before use."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from node import settings
from node.errors import ModelFileError, SettingsError
from node.models import sources

_MAX_FILE_BYTES = 1 << 20

Id = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9.-]*\Z", max_length=64)]
Line = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f]+\Z", max_length=200)]
# No separator and no leading dot: the name can only ever mean a file right inside the models folder.
FileName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._+-]*\.gguf\Z", max_length=128)]
Bytes = Annotated[int, msgspec.Meta(gt=0, le=1 << 40)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Parts = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=64)]


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: what people read, and what its weights must be to the byte."""

    id: Id
    description: Line
    licence: Line
    licence_url: str = ""
    file: FileName
    size: Bytes
    sha256: Sha256
    parts: Parts
    default: bool = False

    @property
    def sources(self) -> tuple[sources.Source, ...]:
        """Where the bytes come from, in order; checked when the catalogue was read."""
        return tuple(sources.parse(part) for part in self.parts)


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: tuple[Entry, ...] = ()


class Catalog:
    """Every model that can be named; the shipped ones first, in the order of their file."""

    def __init__(self, shipped: Iterable[Entry], own: Iterable[Entry] = ()) -> None:
        self.entries = (*shipped, *own)

    @property
    def default(self) -> Entry:
        """The model that is taken where none is named."""
        return next(entry for entry in self.entries if entry.default)

    def find(self, name: str) -> Entry:
        """The model with this id; raises ModelFileError that names the likeliest ones."""
        known = {entry.id: entry for entry in self.entries}
        if name in known:
            return known[name]
        near = [one for one in known if len(name) > 1 and _likeness(name.lower(), one) >= 0.6]
        meant = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known)}."
        raise ModelFileError(
            f"There is no model `{name}`. {meant}",
            hint="`outpost models list` shows every model; a path to a GGUF file must end in .gguf.",
        )


def load() -> Catalog:
    """The shipped catalogue joined with the user's; raises SettingsError that names the file and the key."""
    shipped = _read(shipped_file())
    _check_shipped(shipped)
    own = _read(own_file()) if own_file().exists() else ()
    _check_own(own, shipped)
    return Catalog(shipped, own)


def shipped_file() -> Path:
    """`catalog.toml`: beside this module in an installed wheel, in `models/` at the top of a source checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "catalog.toml"
    return installed if installed.exists() else here.parents[1] / "models" / "catalog.toml"


def own_file() -> Path:
    """Where the user's own models may be listed; need not exist."""
    return settings.home() / "catalog.toml"


def parse(text: str, source: str) -> tuple[Entry, ...]:
    """Read one catalogue; raises SettingsError that begins with `source`, a name for the text."""
    try:
        entries = msgspec.convert(tomllib.loads(text), _Document).models
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source} is not valid TOML: {error}.") from error
    except msgspec.ValidationError as error:
        raise SettingsError(f"In {source}: {error}.") from error
    for entry in entries:
        try:
            _ = entry.sources
        except ValueError as error:
            raise SettingsError(f"In {source}, model {entry.id}: {error}.") from error
    _refuse_twins(entries, source)
    return entries


def _likeness(name: str, known: str) -> float:
    """0 to 1; people leave the ends of long names off, so that their beginnings count as well."""
    return max(
        difflib.SequenceMatcher(None, name, known[:end]).ratio() for end in {len(known), len(name), len(name) + 1}
    )


def _read(path: Path) -> tuple[Entry, ...]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise SettingsError(f"{path} is larger than a catalogue can be ({_MAX_FILE_BYTES} bytes).")
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8: {error}.") from error


def _refuse_twins(entries: Iterable[Entry], source: str) -> None:
    ids: set[str] = set()
    files: set[str] = set()
    for entry in entries:
        if entry.id in ids:
            raise SettingsError(f"In {source}: the id {entry.id} is given to two models.")
        # Some file systems ignore case, so two names that differ only in case would be one file there.
        if entry.file.lower() in files:
            raise SettingsError(f"In {source}: the file {entry.file} is given to two models.")
        ids.add(entry.id)
        files.add(entry.file.lower())


def _check_shipped(entries: tuple[Entry, ...]) -> None:
    if sum(entry.default for entry in entries) != 1:
        raise SettingsError(f"{shipped_file()} must mark exactly one model with `default = true`.")


def _check_own(own: tuple[Entry, ...], shipped: tuple[Entry, ...]) -> None:
    for entry in own:
        if entry.default:
            raise SettingsError(
                f"In {own_file()}: {entry.id} cannot be the default.", hint="Set model.name in node.toml instead."
            )
        if entry.id in {one.id for one in shipped}:
            raise SettingsError(f"In {own_file()}: {entry.id} is a shipped model; choose another id.")
    _refuse_twins((*shipped, *own), str(own_file()))
