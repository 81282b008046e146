"""A fleet in a folder: its keys, its repository, and nodes that look at it."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from node.fleet import keys
from node.fleet.clock import Clock
from node.fleet.directive import Rollout
from node.fleet.profile import Profile, parse
from node.fleet.publish import Keyring, Publication
from node.fleet.trust import Trust
from node.settings import Fleet as FleetSettings
from node.store.db import Database

TODAY = datetime(2027, 1, 10, 12, tzinfo=UTC)


def profile(name: str = "kiosk", slots: int = 3, model_sha256: str = "", model: str = "") -> Profile:
    """A profile that any machine can be."""
    digest = f'model_sha256 = "{model_sha256}"\n' if model_sha256 else ""
    named = f'[settings.model]\nname = "{model}"\n' if model else ""
    text = (
        f'name = "{name}"\ndescription = "A {name}"\n{digest}{named}[settings.engine]\nkind = "echo"\nslots = {slots}\n'
    )
    return parse(text, "a test")


class FleetOffice:
    """The manager's desk: three root keys, an offline and an online key, and the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, TODAY
        self.repository = folder / "repository"
        self.roots = [keys.make(folder / "keys" / f"root-{number}.pem") for number in (1, 2, 3)]
        self.offline = keys.make(folder / "keys" / "profiles.pem")
        self.online = keys.make(folder / "keys" / "online.pem")
        self.begin()

    @property
    def everyone(self) -> Keyring:
        return Keyring((*self.roots[:2], self.offline, self.online))

    @property
    def root_file(self) -> Path:
        return self.repository / "metadata" / "1.root.json"

    def begin(self) -> None:
        publication = Publication.begin(
            self.repository,
            self.now,
            [signer.public_key for signer in self.roots],
            self.offline.public_key,
            self.online.public_key,
        )
        publication.commit(self.everyone)

    def open(self) -> Publication:
        return Publication(self.repository, self.now)

    def add(self, added: Profile) -> str:
        publication = self.open()
        digest = publication.put_profile(added)
        publication.commit(self.everyone)
        return digest

    def roll_out(self, digest: str, name: str = "first", profile: str = "kiosk", **more: object) -> Rollout:
        publication = self.open()
        rollout = Rollout(name=name, revision=1, profile=profile, profile_sha256=digest, **more)  # type: ignore[arg-type]
        publication.put_rollout(rollout)
        publication.commit(self.everyone)
        return rollout

    def renew(self, days: float = 1) -> None:
        """Time goes on, and timestamp and snapshot are signed again."""
        self.now += timedelta(days=days)
        publication = self.open()
        publication.renew("timestamp", "snapshot")
        publication.commit(self.everyone)

    def copy(self, name: str) -> Path:
        """The repository as it is now, kept for later."""
        return Path(shutil.copytree(self.repository, self.folder / name))


class FixedClock:
    """A clock that says what it is told; `up` is the machine's uptime."""

    def __init__(self, now: datetime = TODAY, synced: bool = True) -> None:
        self.now, self.synced, self.up = now.timestamp(), synced, 1000.0

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now, lambda: self.synced, lambda: self.up)


@dataclasses.dataclass
class FleetNode:
    """A node's side: its folder, its database, its trust."""

    trust: Trust
    database: Database
    folder: Path

    @property
    def metadata(self) -> Path:
        return self.folder / "metadata"


@contextlib.asynccontextmanager
async def fleet_node(
    folder: Path, office: FleetOffice, clock: FixedClock | None = None, url: str = "", **settings: object
) -> AsyncIterator[FleetNode]:
    """A node that was given the office's root keys; the same folder again is the same node after a restart."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240  # nobody else runs yet
    database = Database(folder / "fleet.db", "FULL")
    await database.open()
    known = FleetSettings(url=url or str(office.repository), root=str(office.root_file), **settings)  # type: ignore[arg-type]
    try:
        yield FleetNode(Trust(known, database, folder, (clock or FixedClock()).clock), database, folder)
    finally:
        await database.close()


def sign_with(signer: CryptoSigner, *others: CryptoSigner) -> Keyring:
    """A keyring of these keys."""
    return Keyring((signer, *others))
