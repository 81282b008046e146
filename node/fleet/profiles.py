"""Where profiles are: those that come with the program, a file, and the one that this node uses."""

from __future__ import annotations

import difflib
import os
import stat
from pathlib import Path

from node import settings
from node.errors import SettingsError
from node.fleet.profile import MAX_BYTES, Profile, parse
from node.fleet.slots import Slots
from node.models.partial import sync_folder


def shipped() -> list[Profile]:
    """Every profile that comes with the program, by name; raises SettingsError where one is broken."""
    return [read(path) for path in sorted(shipped_folder().glob("*.toml"))]


def shipped_folder() -> Path:
    """`firmware_profiles`: beside this module in an installed wheel, at the top of a source checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "firmware_profiles"
    return installed if installed.exists() else here.parents[1] / "firmware_profiles"


def find(name: str) -> Profile:
    """The profile with that name, or the file with that path; raises SettingsError that names the likeliest ones."""
    if name.endswith(".toml") or os.sep in name:
        return read(Path(name).expanduser())
    known = {path.stem: path for path in sorted(shipped_folder().glob("*.toml"))}
    if name in known:
        return read(known[name])
    near = difflib.get_close_matches(name, known, 2)
    meant = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known)}."
    raise SettingsError(
        f"There is no profile `{name}`. {meant}", hint="The path of a profile of your own must end in .toml."
    )


def read(path: Path) -> Profile:
    """The profile in that file; raises SettingsError with every mistake."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SettingsError(f"{path} is no file.")
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise SettingsError(f"Cannot read the profile {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SettingsError(f"{path}, line {line}: it is not UTF-8.") from error
    return parse(text, str(path))


def in_use_file() -> Path:
    """The copy of the profile that this node uses; need not exist."""
    return settings.home() / "profile.toml"


def in_use() -> Profile | None:
    """The profile that this node uses: the one that a fleet put in charge, else the one that was chosen by hand."""
    if (committed := Slots().in_charge()) is not None:
        return committed
    path = in_use_file()
    return read(path) if path.exists() else None


def use(profile: Profile) -> None:
    """Make it the one that this node uses from its next start on; it survives a power cut, whole or not at all."""
    path = in_use_file()
    temporary = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(profile.text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise SettingsError(f"Cannot write {path}: {error.strerror}.") from error
    Slots().point_nowhere()


def use_none() -> bool:
    """Use no profile from the next start on; False where there was none."""
    path = in_use_file()
    try:
        path.unlink()
        sync_folder(path.parent)
        there_was = True
    except FileNotFoundError:
        there_was = False
    except OSError as error:
        raise SettingsError(f"Cannot remove {path}: {error.strerror}.") from error
    return Slots().point_nowhere() or there_was


def chosen(name: str | None) -> Profile | None:
    """The profile that was named, else the one that this node uses."""
    return find(name) if name else in_use()
