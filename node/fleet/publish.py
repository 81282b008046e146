"""The manager's side: a folder of signed files, made offline, for any web server, mirror or USB stick.

    root       2 of 3 keys    who may sign what; signs itself and `targets`
    targets    the root keys  only hands on to the two roles below
    profiles   offline key    profiles/*, indexes/*
    rollouts   online key     rollouts/*: chooses among profiles
    snapshot, timestamp       online key

Every change is made in memory, signed, and then written: new files under new names first, timestamp.json last, so that
nobody who copies the folder meanwhile gets more than a mix that nodes refuse. Nothing is uploaded from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.api.serialization import SerializationError
from tuf.api.serialization.json import JSONSerializer

from node.errors import OperatorError
from node.fleet import durable, places
from node.fleet.directive import Rollout
from node.fleet.metadata import SIGNED_AT, TIME_RESET
from node.fleet.profile import Profile
from node.models import lock

Role = Literal["root", "targets", "profiles", "rollouts", "snapshot", "timestamp"]
ONLINE = ("rollouts", "snapshot", "timestamp")
# Days for which each role's word holds. The first four are offline: people have to come together for them.
DAYS: Mapping[Role, int] = {
    "root": 730,
    "targets": 730,
    "profiles": 365,
    "rollouts": 30,
    "snapshot": 30,
    "timestamp": 7,
}
_COMPACT = JSONSerializer(compact=True)


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys at hand. Root keys may be fewer than must agree; the rest is then signed elsewhere."""

    signers: tuple[CryptoSigner, ...]

    def of(self, ids: Iterable[str]) -> list[CryptoSigner]:
        """Those of the keys that are at hand."""
        wanted = set(ids)
        return [signer for signer in self.signers if signer.public_key.keyid in wanted]


class Publication:
    """A repository's folder and what it holds. `commit` signs and writes what was changed, as of `now`."""

    def __init__(self, folder: Path, now: datetime) -> None:
        self.folder, self.now = folder, now
        self._roles: dict[Role, Metadata[Any]] = {}
        self._changed: set[Role] = set()
        self._files: dict[str, bytes] = {}
        for role in DAYS:
            if (found := self._current(role)) is not None:
                self._roles[role] = found
        self._found = self._signings()

    @classmethod
    def begin(
        cls,
        folder: Path,
        now: datetime,
        root: Iterable[SSlibKey],
        profiles: SSlibKey,
        online: SSlibKey,
        threshold: int = 2,
        days: Mapping[Role, int] = DAYS,
    ) -> Publication:
        """A new repository, not written yet; raises OperatorError where there is one."""
        new = cls(folder, now)
        if new._roles:
            raise OperatorError(f"{folder} holds a repository already.")
        keys = list(root)
        top = Root(consistent_snapshot=True, expires=now + timedelta(days=days["root"]))
        for role in ("root", "targets"):
            for key in keys:
                top.add_key(key, role)
            top.roles[role].threshold = threshold
        for role in ("snapshot", "timestamp"):
            top.add_key(online, role)
        hands = Targets(expires=now + timedelta(days=days["targets"]))
        hands.delegations = _delegations(profiles, online)
        made: Mapping[Role, Any] = {
            "root": top,
            "targets": hands,
            "profiles": Targets(expires=now + timedelta(days=days["profiles"])),
            "rollouts": Targets(expires=now + timedelta(days=days["rollouts"])),
            "snapshot": Snapshot(expires=now + timedelta(days=days["snapshot"])),
            "timestamp": Timestamp(expires=now + timedelta(days=days["timestamp"])),
        }
        for role, signed in made.items():
            signed.version = 0  # `commit` makes it 1
            new._roles[role] = Metadata(signed)
            new._changed.add(role)
        return new

    def _current(self, role: Role) -> Metadata[Any] | None:
        """What nodes see of a role. There may be newer files, of a signing that was cut: they never counted."""
        folder = self.folder / places.METADATA
        if role == "timestamp":
            return _parsed(folder / "timestamp.json")
        if role == "root":  # counts as soon as it is there
            return _version(folder, role, _newest(folder, role))
        timestamp = self._current("timestamp")
        if timestamp is None:
            return None
        snapshot = _version(folder, "snapshot", timestamp.signed.snapshot_meta.version)
        if role == "snapshot" or snapshot is None:
            return snapshot
        meta = snapshot.signed.meta.get(f"{role}.json")
        return _version(folder, role, meta.version) if meta else None

    def _signings(self) -> int:
        """How often the repository on disk was signed."""
        timestamp = self._current("timestamp")
        return int(timestamp.signed.version) if timestamp else 0

    def signed(self, role: Role) -> Any:
        """A role's content; raises OperatorError where there is no repository."""
        if role not in self._roles:
            raise OperatorError(
                f"{self.folder} holds no fleet's repository: its {role} is missing.", hint="outpost fleet init"
            )
        return self._roles[role].signed

    def version(self, role: Role) -> int:
        """How often the role has spoken."""
        return int(self.signed(role).version)

    # Changes.

    def put_profile(self, profile: Profile) -> str:
        """Let the offline key sign a profile from `commit` on; returns its SHA-256."""
        data = profile.text.encode()
        digest = hashlib.sha256(data).hexdigest()
        self._put("profiles", places.profile_target(profile.name, digest), data)
        return digest

    def drop_profile(self, target: str) -> list[str]:
        """Let nobody choose a profile any more, and take the rollouts away that do; returns these. Nodes keep it."""
        if not target.startswith("profiles/") or self.signed("profiles").targets.pop(target, None) is None:
            raise OperatorError(f"No profile {target} is signed.")
        self._changed.add("profiles")
        chosen = [
            one.name for one in self.rollouts() if places.profile_target(one.profile, one.profile_sha256) == target
        ]
        for name in chosen:
            self.drop_rollout(name)
        return chosen

    def put_index(self, model_sha256: str, index: bytes) -> None:
        """Let the offline key sign a model's chunk index."""
        self._put("profiles", places.index_target(model_sha256), index)

    def put_rollout(self, rollout: Rollout) -> None:
        """Let the online key sign a rollout; raises OperatorError where its profile is not signed."""
        target = places.profile_target(rollout.profile, rollout.profile_sha256)
        signed = self.signed("profiles").targets.get(target)
        if signed is None or signed.hashes["sha256"] != rollout.profile_sha256:
            raise OperatorError(
                f"The profile {rollout.profile} ({rollout.profile_sha256[:16]}…) is not signed.",
                hint="outpost fleet add",
            )
        data = msgspec.json.format(msgspec.json.encode(rollout), indent=1)
        self._put("rollouts", places.rollout_target(rollout.name), data)

    def drop_rollout(self, name: str) -> None:
        """Take a rollout away: nodes keep what they have."""
        if self.signed("rollouts").targets.pop(places.rollout_target(name), None) is None:
            raise OperatorError(f"There is no rollout {name}.")
        self._changed.add("rollouts")

    def renew(self, *roles: Role) -> None:
        """Sign these again with a later end."""
        self._changed.update(roles)

    def aged(self, *roles: Role) -> list[Role]:
        """Those of the roles that have less than half of their time before them."""
        return [role for role in roles if self.signed(role).expires - self.now < timedelta(days=DAYS[role] / 2)]

    def replace_key(self, role: Literal["root", "profiles", "online"], old: str, new: SSlibKey) -> None:
        """Give a key's say to another one; `old` is the id of the one that goes."""
        if role == "root":
            top = self.signed("root")
            for name in ("root", "targets"):
                top.revoke_key(old, name)
                top.add_key(new, name)
            self._changed.update({"root", "targets"})
            return
        if role == "online":
            top = self.signed("root")
            for name in ("snapshot", "timestamp"):
                top.revoke_key(old, name)
                top.add_key(new, name)
            self._changed.add("root")
        delegated: Role = "profiles" if role == "profiles" else "rollouts"
        hands = self.signed("targets")
        hands.revoke_key(old, delegated)
        hands.add_key(new, delegated)
        self._changed |= {"targets", delegated}

    def reset_time(self) -> None:
        """Let the root keys say that it is now: nodes whose floor of the time is wrong come back to it."""
        before = self.signed("root").unrecognized_fields.get(TIME_RESET, {}).get("revision", 0)
        self.signed("root").unrecognized_fields[TIME_RESET] = {
            "revision": before + 1,
            "seconds": int(self.now.timestamp()),
        }
        self._changed.add("root")

    # Reading.

    def profiles(self) -> dict[str, str]:
        """SHA-256 of every signed profile, by its target's name."""
        found = self.signed("profiles").targets.items()
        return {target: info.hashes["sha256"] for target, info in found if target.startswith("profiles/")}

    def rollouts(self) -> list[Rollout]:
        """Every rollout, by name; raises OperatorError."""
        names = sorted(self.signed("rollouts").targets)
        return [msgspec.json.decode(self.read("rollouts", name), type=Rollout) for name in names]

    def read(self, role: Role, target: str) -> bytes:
        """A target's bytes; raises OperatorError."""
        info = self.signed(role).targets.get(target)
        if info is None:
            raise OperatorError(f"There is no {target} in the repository.")
        place = places.target_file(target, info.hashes["sha256"])
        if place in self._files:
            return self._files[place]
        try:
            return (self.folder / place).read_bytes()
        except OSError as error:
            raise OperatorError(f"Cannot read {self.folder / place}: {error.strerror}.") from error

    # Signing and writing.

    def missing(self, keyring: Keyring) -> dict[Role, int]:
        """How many signatures each changed role will lack with these keys."""
        lacking = {role: self._threshold(role) - len(keyring.of(self._keys(role))) for role in self._affected()}
        former = _version(self.folder / places.METADATA, "root", self.version("root"))
        if "root" in lacking and former is not None:  # nodes believe a new root only by the old one's word
            before = former.signed.roles["root"]
            lacking["root"] = max(lacking["root"], before.threshold - len(keyring.of(before.keyids)))
        return {role: count for role, count in lacking.items() if count > 0}

    def commit(self, keyring: Keyring, days: Mapping[Role, int] = DAYS) -> list[str]:
        """Sign what changed and write it, timestamp.json last; returns the new files. Raises OperatorError."""
        if lacking := self.missing(keyring):
            named = ", ".join(f"{role} ({count} more)" for role, count in lacking.items())
            raise OperatorError(
                f"Not enough keys are at hand to sign: {named}.", hint="Name more key files with --key."
            )
        affected = self._affected()
        for role in affected:
            signed = self.signed(role)
            signed.version = max(signed.version, _newest(self.folder / places.METADATA, role)) + 1
            signed.expires = (self.now + timedelta(days=days[role])).astimezone(UTC)
        for role in affected:
            self._seal(role, keyring)
        self._write(affected)
        self._changed.clear()
        self._found = self.version("timestamp")
        return [self._file(role) for role in affected]

    def _affected(self) -> list[Role]:
        """What changes with what was changed, in the order of signing."""
        if not self._changed:
            return []
        changed: set[Role] = set(self._changed)
        if any(role not in ("root", "timestamp") for role in changed):
            changed.add("snapshot")
        return [role for role in DAYS if role in changed or role == "timestamp"]

    def _seal(self, role: Role, keyring: Keyring) -> None:
        metadata = self._roles[role]
        if role == "snapshot":
            metadata.signed.meta = {f"{name}.json": self._meta(name) for name in ("targets", "profiles", "rollouts")}
        if role == "timestamp":
            metadata.signed.snapshot_meta = self._meta("snapshot")
            metadata.signed.unrecognized_fields[SIGNED_AT] = int(self.now.timestamp())
            if (reset := self.signed("root").unrecognized_fields.get(TIME_RESET)) is not None:
                metadata.signed.unrecognized_fields[TIME_RESET] = reset["revision"]  # it is not what was wrong
        metadata.signatures.clear()
        for signer in keyring.of(self._keys(role) | self._former_keys(role)):
            metadata.sign(signer, append=True)

    def _meta(self, role: Role) -> MetaFile:
        metadata = self._roles[role]
        return MetaFile.from_data(metadata.signed.version, metadata.to_bytes(_COMPACT), ["sha256"])

    def _keys(self, role: Role) -> set[str]:
        by = self.signed("targets").delegations.roles if role in places.PATTERNS else self.signed("root").roles
        return set(by[role].keyids)

    def _former_keys(self, role: Role) -> set[str]:
        """A new root is signed by the old one's keys, too."""
        former = _version(self.folder / "metadata", "root", self.version("root") - 1) if role == "root" else None
        return set(former.signed.roles["root"].keyids) if former else set()

    def _threshold(self, role: Role) -> int:
        by = self.signed("targets").delegations.roles if role in places.PATTERNS else self.signed("root").roles
        return int(by[role].threshold)

    def _put(self, role: Role, target: str, data: bytes) -> None:
        if not places.may_sign(role, target):
            raise OperatorError(f"{target} cannot be a target's name.")
        info = TargetFile.from_data(target, data, ["sha256"])
        self.signed(role).targets[target] = info
        self._files[places.target_file(target, info.hashes["sha256"])] = data
        self._changed.add(role)

    def _file(self, role: Role) -> str:
        version = "" if role == "timestamp" else f"{self.version(role)}."
        return f"{places.METADATA}{version}{role}.json"

    def _write(self, roles: Iterable[Role]) -> None:
        try:
            durable.make_folder(self.folder / places.METADATA)
            with lock.held(self.folder.with_name(f".{self.folder.name}.lock"), lambda: None):
                if self._signings() != self._found:
                    raise OperatorError(
                        "Somebody else has signed in this folder meanwhile; nothing is changed.", hint="Do it again."
                    )
                for name, data in self._files.items():
                    durable.make_folder((self.folder / name).parent)
                    durable.write(self.folder / name, data)
                for role in roles:
                    durable.write(self.folder / self._file(role), self._roles[role].to_bytes(_COMPACT))
        except OSError as error:
            raise OperatorError(f"Cannot write into {self.folder}: {error.strerror}.") from error


def _delegations(profiles: SSlibKey, online: SSlibKey) -> Delegations:
    keys = {"profiles": profiles, "rollouts": online}
    roles = {
        name: DelegatedRole(name, [key.keyid], 1, terminating=True, paths=list(places.PATTERNS[name]))
        for name, key in keys.items()
    }
    return Delegations({key.keyid: key for key in keys.values()}, roles)


def _newest(folder: Path, role: Role) -> int:
    """The highest version that is there; 0 where there is none."""
    numbers = [int(path.name.partition(".")[0]) for path in folder.glob(f"*.{role}.json") if path.name[0].isdigit()]
    return max(numbers, default=0)


def _version(folder: Path, role: Role, version: int) -> Metadata[Any] | None:
    return _parsed(folder / f"{version}.{role}.json")


def _parsed(path: Path) -> Metadata[Any] | None:
    try:
        return Metadata.from_bytes(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, RepositoryError, SerializationError, ValueError) as error:
        raise OperatorError(f"{path} cannot be used: {error}.") from error


def today() -> datetime:
    """Now, as this machine says."""
    return datetime.now(UTC)
