"""What the fleet's manager wants of this node, believed only as far as it is signed.

Two kinds of keys speak. The offline key signs profiles and chunk indexes; the online key signs rollouts, and a rollout
can only choose among the profiles that the offline key signed. So whoever takes the online machine can move nodes
between profiles that were meant for them, and nothing else.

A look at the repository that fails changes nothing here and stops nothing: the caller serves on and tries again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node import settings as node_settings
from node.errors import FleetError, NodeError, SettingsError
from node.fleet import clock, durable, places, profile
from node.fleet.clock import Clock
from node.fleet.directive import MAX_INDEX_BYTES, MAX_ROLLOUT_BYTES, ChunkIndex, Rollout, check
from node.fleet.floor import Floor, FloorStore
from node.fleet.metadata import Look
from node.fleet.profile import Profile
from node.fleet.refusal import BeyondDelegation, BrokenRepository, UnsignedProfile, UnusableProfile
from node.fleet.repository import Repository
from node.models import lock
from node.settings import Fleet
from node.store.db import Database

log = logging.getLogger(__name__)

_HOUR_S, _DAY_S = 3600.0, 86_400.0
# What a fleet's profile may not say, since what belongs to one node (its keys) would go there.
_ADDRESSES = (("cloud", "url"), ("hub", "url"), ("hub", "node"), ("outbox", "callbacks"))


@dataclass(frozen=True, slots=True)
class Refused:
    """A rollout that is not obeyed, and why."""

    name: str
    error: FleetError


@dataclass(frozen=True, slots=True)
class Directives:
    """What a look at the repository found: rollouts to obey, and those that were refused."""

    rollouts: tuple[Rollout, ...] = ()
    refused: tuple[Refused, ...] = ()
    signed_at: float = 0.0


class Trust:
    """The fleet's repository as this node sees it. `refresh` first; the rest speaks of what the last one found."""

    def __init__(
        self, settings: Fleet, database: Database, folder: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._settings, self._clock = settings, clock or Clock()
        self._folder = folder or default_folder()
        self._store = FloorStore(database)
        self._floor, self._floor_at = Floor(), self._clock.uptime()
        self._look: Look | None = None
        self.repository: Repository | None = None
        "the way that the last look took; it counts requests and bytes"

    async def refresh(self) -> Directives:
        """Look at the repository, and give what it wants; raises FleetError, SettingsError, StoreFailed."""
        await self._load_floor()
        look, error = await asyncio.to_thread(self._refresh)
        if look is not None:
            await self._keep(look)
        if error is not None:
            raise error
        assert look is not None, "without an error there is a look"
        self._look = look
        return await asyncio.to_thread(self._directives, look)

    async def profile(self, rollout: Rollout) -> Profile:
        """The profile that a rollout chooses; raises FleetError."""
        return await asyncio.to_thread(self._profile, self._seen(), rollout)

    async def index(self, model_sha256: str) -> ChunkIndex:
        """How to fetch the model file with that SHA-256; raises FleetError."""
        return await asyncio.to_thread(self._index, self._seen(), model_sha256)

    async def now(self) -> float:
        """What time it is for all that the fleet says, in seconds since 1970; never before the floor."""
        if not self._floor.time:
            await self._load_floor()
        return self._now()

    def least_time(self) -> float:
        """What time it is at least, by the floor that was read last."""
        return self._now()

    async def keep_time(self) -> float:
        """Raise the floor to now, as a node does every hour; returns now."""
        now = await self.now()
        if now >= self._floor.time + _HOUR_S:
            await self._store.lift({}, now)
            await self._load_floor()
        return now

    def _now(self) -> float:
        ran = max(0.0, self._clock.uptime() - self._floor_at)
        return clock.reference(self._clock.system(), self._clock.synced(), self._floor.time, ran)

    async def _load_floor(self) -> None:
        """The floor moves up with the time that this machine runs, also between two looks at the database."""
        floor, uptime = await self._store.load(), self._clock.uptime()
        ran = uptime - self._floor_at
        if floor.reset == self._floor.reset and self._floor.time + ran >= floor.time:
            self._floor = Floor(floor.versions, self._floor.time, floor.reset)
        else:
            self._floor, self._floor_at = floor, uptime

    async def _keep(self, look: Look) -> None:
        reset = look.time_reset
        if reset is not None and reset[0] > self._floor.reset:
            log.warning("the fleet's root keys reset this node's floor of the time", extra={"revision": reset[0]})
            await self._store.reset_time(*reset)
        await self._store.lift(look.versions, self._believable(look.signed_at))
        await self._load_floor()

    def _believable(self, signed_at: float) -> float:
        """A manager's clock may be in the future; a node whose own is right does not follow it there."""
        most = self._clock.system() + _DAY_S
        if signed_at <= most or not self._clock.synced():
            return signed_at
        log.warning("the fleet's repository was signed in the future", extra={"ahead_s": int(signed_at - most)})
        return 0.0

    def _seen(self) -> Look:
        if self._look is None:
            raise BrokenRepository("The fleet's repository was not looked at yet.")
        return self._look

    # From here on: in a thread.

    def _refresh(self) -> tuple[Look | None, NodeError | None]:
        """One look, by one process at a time; with an error what was accepted before it still counts."""
        look: Look | None = None
        try:
            root, now = self._root(), self._now()
            durable.make_folder(self._folder)
            with lock.held(self._folder / "lock", lambda: None):
                self.repository = Repository(self._settings, check_time=self._clock.system() >= now - _HOUR_S)
                alone = clock.reference(self._clock.system(), self._clock.synced(), 0.0, 0.0)
                look = Look(self._folder / "metadata", self.repository, root, now, self._floor, alone)
                look.refresh()
        except NodeError as error:
            return look, error
        except OSError as error:
            return look, FleetError(f"Cannot use {self._folder}: {error.strerror or error}.")
        return look, None

    def _root(self) -> bytes:
        path = Path(self._settings.root).expanduser() if self._settings.root else default_root()
        try:
            return path.read_bytes()[: 64 << 10]
        except OSError as error:
            raise SettingsError(
                f"Cannot read the fleet's root keys, {path}: {error.strerror}.",
                hint="The fleet's manager has it: metadata/1.root.json of the repository. fleet.root says where it is.",
            ) from error

    def _directives(self, look: Look) -> Directives:
        targets, signed = look.targets_of(places.ROLLOUTS), look.targets_of(places.PROFILES)
        if len(targets) > places.MAX_ROLLOUTS:
            raise BrokenRepository(f"The fleet has {len(targets)} rollouts; at most {places.MAX_ROLLOUTS} can be.")
        rollouts: list[Rollout] = []
        refused: list[Refused] = []
        for target in sorted(targets):
            try:
                rollouts.append(self._rollout(look, target, signed))
            except FleetError as error:
                refused.append(Refused(target, error))
                log.warning("a rollout is refused", extra={"rollout": target, "reason": error.message})
        self._prune(look)
        return Directives(tuple(rollouts), tuple(refused), look.signed_at)

    def _rollout(self, look: Look, target: str, signed: object) -> Rollout:
        data = self._bytes(look, places.ROLLOUTS, target, MAX_ROLLOUT_BYTES)
        try:
            rollout = msgspec.json.decode(data, type=Rollout)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BrokenRepository(f"{target} is no rollout that this version knows: {error}.") from error
        if target != places.rollout_target(rollout.name):
            raise BeyondDelegation(f"{target} calls itself {rollout.name}.")
        self._refuse_unsigned(look, rollout)
        return rollout

    def _refuse_unsigned(self, look: Look, rollout: Rollout) -> str:
        """The target of the profile that a rollout chooses; raises UnsignedProfile."""
        target = places.profile_target(rollout.profile, rollout.profile_sha256)
        digest, _ = look.targets_of(places.PROFILES).get(target, ("", 0))
        if digest != rollout.profile_sha256:
            raise UnsignedProfile(
                f"The rollout {rollout.name} chooses a profile {rollout.profile} ({rollout.profile_sha256[:16]}…) "
                "that the offline key never signed.",
                hint="Sign the profile first (`outpost fleet add`), or somebody else has the online key.",
            )
        return target

    def _profile(self, look: Look, rollout: Rollout) -> Profile:
        target = self._refuse_unsigned(look, rollout)
        data = self._bytes(look, places.PROFILES, target, profile.MAX_BYTES)
        try:
            found = profile.parse(data.decode(), target)
        except (SettingsError, UnicodeDecodeError) as error:
            raise UnusableProfile(f"This node cannot use a signed profile: {error}") from error
        if found.name != rollout.profile:
            raise UnusableProfile(f"{target} calls itself {found.name}.")
        refuse_paths(found)
        return found

    def _index(self, look: Look, model_sha256: str) -> ChunkIndex:
        target = places.index_target(model_sha256)
        data = self._bytes(look, places.PROFILES, target, MAX_INDEX_BYTES)
        try:
            index = check(msgspec.json.decode(data, type=ChunkIndex))
        except (ValueError, UnicodeDecodeError) as error:  # msgspec's errors are ValueErrors
            raise BrokenRepository(f"{target} is no chunk index: {error}.") from error
        if index.sha256 != model_sha256:
            raise BrokenRepository(f"{target} is the index of another file.")
        return index

    def _bytes(self, look: Look, role: str, target: str, most: int) -> bytes:
        """A target's bytes, from this node's copy where it is still the right one."""
        digest, length = look.targets_of(role).get(target, ("", 0))
        kept = self._folder / "targets" / digest
        if digest and length <= most:
            try:
                with kept.open("rb") as file:
                    data = file.read(length + 1)
                if len(data) == length and hashlib.sha256(data).hexdigest() == digest:
                    return data
            except OSError:
                pass  # not fetched yet, or unreadable: the repository has it
        data = look.download(role, target, most)
        try:
            durable.make_folder(kept.parent)
            durable.write(kept, data)
        except OSError as error:
            raise FleetError(f"Cannot write {kept}: {error.strerror}.") from error
        return data

    def _prune(self, look: Look) -> None:
        """Forget copies of targets that nobody signs for any more."""
        signed = {digest for role in places.PATTERNS for digest, _ in look.targets_of(role).values()}
        folder = self._folder / "targets"
        try:
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name not in signed:
                    path.unlink(missing_ok=True)
        except OSError as error:  # they only take room
            log.warning("old copies of targets cannot be removed", extra={"reason": str(error)})


def refuse_paths(found: Profile) -> None:
    """A fleet's profile names models, never files or addresses; raises UnusableProfile."""
    for key, value in _texts(found):
        named = any(part in value for part in "/\\\0") or value.lower().endswith(".gguf")
        if named or value.startswith(("~", ".", "@")):
            raise UnusableProfile(
                f"The profile {found.name} sets {key} to {value[:100]!a}: a fleet's profile may not name a path.",
                hint="Name a model, and give its SHA-256 as model_sha256.",
            )

    for section, key in _ADDRESSES:
        if found.layer.get(section, {}).get(key):
            raise UnusableProfile(
                f"The profile {found.name} sets {section}.{key}: a fleet's profile may not name an address.",
                hint="Each node's keys would go there; it belongs into its own node.toml.",
            )


def _texts(found: Profile) -> Iterator[tuple[str, str]]:
    for key in ("name", "variant"):
        value = found.layer.get("model", {}).get(key)
        if isinstance(value, str):
            yield f"model.{key}", value
    for text in found.settings.prewarm.templates:
        if text.startswith("@"):
            yield "prewarm.templates", text


def default_folder() -> Path:
    """Where what was believed is kept; need not exist yet."""
    return node_settings.home() / "fleet"


def default_root() -> Path:
    """Where root.json is looked for when no setting says."""
    return default_folder() / "root.json"
