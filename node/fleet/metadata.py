"""TUF's client, with what it leaves to its users: durable files, a floor, a clock, and a name for every attack.

`tuf.ngclient.Updater` decides all that TUF decides. It is used once for each look at the repository. Beside its public
methods this needs of it, and `test_metadata` fails where a newer version has them no more:

    _persist_file, _persist_metadata, _load_*      hooks: fsync, the floor, and where in the order of roles we are
    _download_metadata                             what came last, to tell a wrong key from a missing signature
    _trusted_set.reference_time                    what counts as now
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from tuf.api import exceptions as tuf
from tuf.api.metadata import Metadata, Targets
from tuf.ngclient import Updater, UpdaterConfig

from node.errors import NodeError, Unreachable
from node.fleet import durable, places
from node.fleet.floor import Floor
from node.fleet.refusal import (
    BeyondDelegation,
    BrokenRepository,
    FrozenRepository,
    MixedRepository,
    NotRepository,
    OldRepository,
    TamperedTarget,
    TooFewSignatures,
    TornMemory,
    WrongKey,
)
from node.fleet.repository import PageInstead, Repository

MAX_TARGETS_BYTES = 4 << 20
_LIMITS = UpdaterConfig(
    max_root_rotations=64,
    max_delegations=4,
    root_max_length=64 << 10,
    timestamp_max_length=16 << 10,
    snapshot_max_length=64 << 10,
    targets_max_length=MAX_TARGETS_BYTES,
)
# Fields of ours in TUF's files: when a timestamp was signed, and the root keys' word that clocks were wrong.
SIGNED_AT, TIME_RESET = "x-outpost-signed-at", "x-outpost-time-reset"


class Look(Updater):
    """One look at the repository. `refresh` first; every method raises FleetError."""

    def __init__(
        self, folder: Path, repository: Repository, root: bytes, now: float, floor: Floor, clock_alone: float = 0.0
    ) -> None:
        """`now` counts as now; after a reset of the time it is the later of the reset and `clock_alone`."""
        self._base = repository.base
        self._floor, self._step, self._clock_alone = floor, "root", clock_alone
        self._began = False
        self._last: tuple[str, bytes] = ("root", root)
        self._torn = bool(floor.versions) and any(
            _is_torn(folder / f"{role}.json") for role in ("timestamp", "snapshot")
        )
        durable.make_folder(folder / "root_history")
        with self._named():
            super().__init__(
                str(folder), self._base + places.METADATA, fetcher=repository, config=_LIMITS, bootstrap=root
            )
        self._began = True
        self.set_time(now)

    def set_time(self, now: float) -> None:
        """What counts as now, in seconds since 1970."""
        self._trusted_set.reference_time = datetime.fromtimestamp(now, UTC)

    def refresh(self) -> None:
        """Bring every role up to date, and refuse what is not to be believed."""
        with self._named():
            super().refresh()
            for role in places.PATTERNS:
                super().get_targetinfo(f"{role}/-")  # loads the delegated role; there is no such target
        for role in ("root", "timestamp", "snapshot", "targets", *places.PATTERNS):
            if role not in self._trusted_set:
                raise BrokenRepository(f"The fleet's repository lacks the role {role}.")
            self._check_floor(role)
        self._check_paths()

    @property
    def versions(self) -> Mapping[str, int]:
        """What was accepted, by role and keys."""
        return {self._place(role): self._trusted_set[role].version for role in self._roles()}

    @property
    def signed_at(self) -> float:
        """When the newest timestamp was signed, in seconds since 1970; 0 where nothing says so that can be believed.

        The online key alone cannot move the time beyond what the offline keys signed for. A timestamp from before a
        reset of the time says nothing: it may be what made the reset necessary.
        """
        said = self._field("timestamp", SIGNED_AT)
        if not isinstance(said, int | float) or not 0 < said < 1e11:
            return 0.0
        if self.time_reset is not None and self._field("timestamp", TIME_RESET) != self.time_reset[0]:
            return 0.0
        offline = [role for role in ("root", "targets", places.PROFILES) if role in self._trusted_set]
        return min(float(said), *(self._trusted_set[role].expires.timestamp() for role in offline))

    @property
    def time_reset(self) -> tuple[int, float] | None:
        """The root keys' word that the floor of the time is wrong: a revision, and what the time was then."""
        match self._field("root", TIME_RESET):
            case {"revision": int(revision), "seconds": int() | float() as seconds} if 0 < seconds < 1e11:
                return revision, float(seconds)
        return None

    def targets_of(self, role: str) -> Mapping[str, tuple[str, int]]:
        """What a delegated role signs: SHA-256 and length by target."""
        signed = cast("Targets", self._trusted_set[role])
        return {name: (target.hashes.get("sha256", ""), target.length) for name, target in signed.targets.items()}

    def download(self, role: str, target: str, most: int) -> bytes:
        """A target's bytes, checked; `most` bounds them."""
        info = cast("Targets", self._trusted_set[role]).targets.get(target)
        if info is None:
            raise BrokenRepository(f"The fleet's repository has no {target}.")
        if info.length > most:
            raise BrokenRepository(f"{target} has {info.length:,} bytes; at most {most:,} can be.")
        if "sha256" not in info.hashes:
            raise BrokenRepository(f"{target} is signed without its SHA-256.")
        with self._named():
            url = self._base + places.target_file(target, info.hashes["sha256"])
            data = bytes(self._fetcher.download_bytes(url, info.length))
        try:
            info.verify_length_and_hashes(data)
        except tuf.LengthOrHashMismatchError as error:
            raise TamperedTarget(
                f"{target} is not the file that was signed: {_said(error)}.",
                hint="Copy the repository again, whole; if that does not help, somebody changed it.",
            ) from error
        return data

    def delegator(self, role: str) -> Any:
        """Whose word says who may sign for a role; None before there is a root."""
        return self._trusted_set["targets" if role in places.PATTERNS else "root"] if self._began else None

    # Hooks of tuf.ngclient.Updater from here on.

    def _load_root(self) -> None:
        self._step = "root"
        super()._load_root()
        self._check_floor("root")
        reset = self.time_reset
        if reset is not None and reset[0] > self._floor.reset:
            self.set_time(max(reset[1], self._clock_alone))

    def _load_timestamp(self) -> None:
        self._step = "timestamp"
        super()._load_timestamp()

    def _load_snapshot(self) -> None:
        self._step = "snapshot"
        super()._load_snapshot()

    def _load_targets(self, role: str, parent_role: str) -> Any:
        self._step = role
        return super()._load_targets(role, parent_role)

    def _download_metadata(self, rolename: str, length: int, version: int | None = None) -> bytes:
        data = bytes(super()._download_metadata(rolename, length, version))
        self._last = (rolename, data)
        return data

    def _persist_metadata(self, rolename: str, data: bytes) -> None:
        self._check_floor(rolename)  # what is refused leaves no trace
        super()._persist_metadata(rolename, data)

    def _persist_file(self, filename: str, data: bytes) -> None:
        durable.write(Path(filename), data)

    def _update_root_symlink(self) -> None:
        """Every look begins with the root that came with the node, so nobody reads the link."""

    # What they need.

    def _roles(self) -> list[str]:
        return [
            role for role in ("root", "timestamp", "snapshot", "targets", *places.PATTERNS) if role in self._trusted_set
        ]

    def _field(self, role: str, name: str) -> Any:
        return self._trusted_set[role].unrecognized_fields.get(name) if role in self._trusted_set else None

    def _place(self, role: str) -> str:
        """Where a role's floor is kept. With other keys it begins anew: whoever had one that was taken away could else
        have signed so high a version that nothing comes after it. The two roles of the root keys never do."""
        if role in ("root", "targets"):
            return role
        by = self._trusted_set.targets.delegations if role in places.PATTERNS else self._trusted_set.root
        keys = " ".join(sorted(by.roles[role].keyids)) if by is not None and by.roles is not None else ""
        return f"{role} {hashlib.sha256(keys.encode()).hexdigest()[:16]}"

    def _check_floor(self, role: str) -> None:
        least, found = self._floor.versions.get(self._place(role), 0), self._trusted_set[role].version
        if found < least:
            raise self._old(f"its {role} is version {found}, and this node has seen {least}")

    def _old(self, seen: str) -> OldRepository:
        if self._torn:
            return TornMemory(
                f"The fleet's repository is an old one: {seen}, though its copies of the metadata were damaged.",
                hint="This node waits for the repository that it knew; nothing needs to be done here.",
            )
        return OldRepository(
            f"The fleet's repository is an old one: {seen}.",
            hint="A copy that was not updated (a mirror, a USB stick), or somebody who plays back old files.",
        )

    def _check_paths(self) -> None:
        for role in places.PATTERNS:
            for target in self.targets_of(role):
                if not places.may_sign(role, target):
                    raise BeyondDelegation(
                        f"The key for {role} signs for {target[:100]!a}, which is not its to sign.",
                        hint="Somebody who has this key tries more than it may do: replace it, with the root keys.",
                    )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """TUF's errors by our names."""
        try:
            yield
        except (tuf.RepositoryError, tuf.DownloadError, ValueError) as error:
            raise self._name(error) from error
        except OSError as error:
            raise BrokenRepository(f"Cannot keep the fleet's metadata: {error.strerror or error}.") from error

    def _name(self, error: Exception) -> NodeError:
        step, said = self._step, _said(error)
        match error:
            case tuf.ExpiredMetadataError():
                return FrozenRepository(
                    f"The fleet's repository is not current any more: {said}.",
                    hint="Nobody signs it again (`outpost fleet sign --online`), or somebody holds news back.",
                )
            case tuf.UnsignedMetadataError():
                return self._signatures()
            case tuf.LengthOrHashMismatchError() | tuf.DownloadLengthMismatchError():
                return MixedRepository(
                    f"The parts of the fleet's repository are from different times: its {step} is not the one "
                    f"that was signed with the others ({said}).",
                    hint="It may be copied right now: try again. Upload timestamp.json last.",
                )
            case tuf.BadVersionNumberError() if step in ("root", "timestamp", "snapshot"):
                return self._old(said)
            case tuf.BadVersionNumberError():
                return MixedRepository(f"The parts of the fleet's repository do not belong together: {said}.")
            case PageInstead():
                return NotRepository(
                    f"A web page came where the fleet's {step} should be: {said}.",
                    hint="A network that wants a login, or a server that answers every address.",
                )
            case tuf.DownloadError():
                return Unreachable(f"The fleet's repository cannot be reached: {said}.")
        return BrokenRepository(f"The fleet's {step} cannot be used: {said}.")

    def _signatures(self) -> NodeError:
        """Was it the wrong key, or not enough of the right ones?"""
        role, data = self._last
        signed, least = _count_signatures(self, role, data)
        if signed:
            return TooFewSignatures(f"The fleet's {role} is signed by {signed} of its keys, but {least} must agree.")
        return WrongKey(
            f"The fleet's {role} is not signed by a key that has a say.",
            hint="This node was given another fleet's root.json, or somebody made this repository who may not.",
        )


def _count_signatures(look: Look, role: str, data: bytes) -> tuple[int, int]:
    """How many of the role's keys signed, and how many must."""
    found: Metadata[Any] = Metadata.from_bytes(data)
    delegator = look.delegator(role) or found.signed  # the first root vouches for itself
    result = delegator.get_verification_result(role, found.signed_bytes, found.signatures)
    if result.verified and role == "root":  # the old keys agree, so it must be the new ones that do not
        result = found.signed.get_verification_result(role, found.signed_bytes, found.signatures)
    return len(result.signed), result.threshold


def _is_torn(path: Path) -> bool:
    try:
        Metadata.from_file(str(path))
    except (OSError, ValueError, tuf.RepositoryError, tuf.StorageError):
        return True
    return False


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:300].rstrip(".")
