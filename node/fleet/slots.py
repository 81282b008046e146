"""The profiles that a fleet put on this node, and the pointer to the one that is in charge.

    profiles/<sha256>.toml   a profile, named after its own bytes: never changed, so it is whole or it is not the one
    profiles/current         the SHA-256 of the committed one, and on the second line of the one before it

Each file is written under another name, reaches the disk, and is renamed; then the folder reaches the disk. So after a
power cut at any point the pointer is the old one or the new one, and what it points to was on disk before. A pointer or
a profile that a bad disk has eaten is told, and the one before it counts.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Set
from pathlib import Path

from node import settings
from node.errors import SettingsError
from node.fleet import durable
from node.fleet.profile import MAX_BYTES, Profile, parse
from node.models.partial import sync_folder

log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_POINTER = 256
_OURS = re.compile(r"[0-9a-f]{64}\.toml|\.([0-9a-f]{64}\.toml|current)\.new")


def digest_of(profile: Profile) -> str:
    """The SHA-256 of a profile's own bytes."""
    return hashlib.sha256(profile.text.encode()).hexdigest()


class Slots:
    """Raises SettingsError where the folder cannot be read or written."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or settings.home() / "profiles"

    def put(self, profile: Profile) -> str:
        """Keep a profile; gives its digest."""
        digest = digest_of(profile)
        if self.get(digest) is None:
            self._write(f"{digest}.toml", profile.text.encode())
        return digest

    def get(self, digest: str) -> Profile | None:
        """The profile of that digest; None where it is missing, is not what its name says, or cannot be used.

        One that an earlier version of this program could use must not keep this one from serving something else.
        """
        assert _DIGEST.fullmatch(digest), "a digest"
        raw = self._read(f"{digest}.toml")
        if raw is None:
            return None
        if hashlib.sha256(raw).hexdigest() != digest:
            log.error("a stored profile is damaged", extra={"profile": digest})
            return None
        try:
            return parse(raw.decode(), f"{self.folder}/{digest}.toml")
        except (SettingsError, UnicodeDecodeError) as error:
            log.error("a stored profile cannot be used by this version", extra={"reason": str(error)})
            return None

    @property
    def current(self) -> str:
        """The digest of the committed profile; "" where there is none."""
        return self._pointer()[0]

    @property
    def previous(self) -> str:
        """The digest of the one before it; "" where there was none."""
        return self._pointer()[1]

    def point(self, digest: str) -> None:
        """Put a profile that is here in charge."""
        now, before = self._pointer()
        if digest != now:
            before = now
            self._write("current", f"{digest}\n{before}\n".encode())
        self._sweep({"current", f"{digest}.toml", f"{before}.toml"})

    def point_nowhere(self) -> bool:
        """No profile of a fleet is in charge any more; False where none was."""
        there_was = self._read("current") is not None
        if there_was:
            self._remove("current")
        return there_was

    def in_charge(self) -> Profile | None:
        """The committed profile, or the one before it where that is damaged; None where there is none at all."""
        for digest in self._pointer():
            if digest and (found := self.get(digest)) is not None:
                return found
        return None

    def _pointer(self) -> tuple[str, str]:
        raw = self._read("current")
        if raw is None:
            return "", ""
        lines = raw[:_MAX_POINTER].decode("ascii", "replace").split("\n")
        now, before, *_ = (line if _DIGEST.fullmatch(line) else "" for line in (*lines, "", ""))
        if not now:
            log.error("the pointer to this node's profile is damaged", extra={"folder": str(self.folder)})
        return now, before

    def _read(self, name: str) -> bytes | None:
        try:
            with (self.folder / name).open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SettingsError(f"Cannot read {self.folder / name}: {error.strerror}.") from error

    def _remove(self, name: str) -> None:
        try:
            (self.folder / name).unlink(missing_ok=True)
            sync_folder(self.folder)
        except OSError as error:
            raise SettingsError(f"Cannot remove {self.folder / name}: {error.strerror}.") from error

    def _sweep(self, keep: Set[str]) -> None:
        """Remove all else that is ours, also what a killed write left. It is no reason to stop if that fails."""
        try:
            for path in self.folder.iterdir():
                if path.name not in keep and _OURS.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("old profiles cannot be removed", extra={"reason": str(error)})

    def _write(self, name: str, data: bytes) -> None:
        try:
            durable.make_folder(self.folder)
            durable.write(self.folder / name, data)
        except OSError as error:
            raise SettingsError(f"Cannot write {self.folder / name}: {error.strerror}.") from error


class SlotsInMemory(Slots):
    """For a node that keeps nothing."""

    def __init__(self) -> None:
        super().__init__(Path("memory"))
        self._files: dict[str, bytes] = {}

    def _read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def _remove(self, name: str) -> None:
        self._files.pop(name, None)

    def _sweep(self, keep: Set[str]) -> None:
        self._files = {name: data for name, data in self._files.items() if name in keep}

    def _write(self, name: str, data: bytes) -> None:
        self._files[name] = data
