"""Which profile a start serves, and what it serves instead when that one does not come up.

A node on trial (`rollout`: probation, commit) starts with the new profile, unless it has died too often under it. What
does not start is told to the update's ledger, and the next best is tried in the same process: the committed profile,
the one before it, what the node was started with. So there is no moment at which only the broken one is left.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from node.errors import NodeError, SettingsError
from node.fleet import durable, fit
from node.fleet.apply import Applier, Host, Terms, located, pin
from node.fleet.installed import InMemory, Installed, Ledger
from node.fleet.manager import Manager as FleetManager
from node.fleet.membership import WALL, Manager, Membership, Report, wall
from node.fleet.pinned import Pinned
from node.fleet.profile import Profile
from node.fleet.rollout import started, step
from node.fleet.share import ChunkStore, Peer
from node.fleet.slots import Slots, SlotsInMemory, digest_of
from node.fleet.trust import Trust
from node.fleet.updater import Updater
from node.machine import hardware
from node.machine.gpu import load_nvml
from node.settings import Fleet, Settings, home
from node.store.db import Database

log = logging.getLogger(__name__)


class Upkeep:
    """`open` it, `prepare` a start; where that fails, `fall_back` and prepare again; `close` it.

    `settings_of` gives what a profile makes of this node, `chosen` the profile that counts without a fleet. Without a
    `file` for its database nothing outlives the process: neither updates nor what they put in charge. `manager`,
    `report` and `node_id` are for a node that belongs to a fleet.
    """

    def __init__(
        self,
        settings_of: Callable[[Profile | None], Settings],
        chosen: Callable[[], Profile | None] = lambda: None,
        file: Path | None = None,
    ) -> None:
        self.database = Database(file, "FULL") if file else None
        self.ledger: Ledger = Installed(self.database) if self.database else InMemory()
        self.slots = Slots() if file else SlotsInMemory()
        self.profile: Profile | None = None
        self.pinned: Pinned | None = None
        self.manager: Manager | None = None
        self.report: Report | None = None
        self.node_id = ""
        self._clock = WALL
        self._settings_of, self._chosen = settings_of, chosen
        self._on_trial = False
        self._left: list[Callable[[], Profile | None]] = []

    async def open(self) -> None:
        """Decide what to start with; raises SettingsError, StoreFailed."""
        if self.database is not None:
            await self.database.open()
        self._left = [lambda: self.slots.get(self.slots.previous) if self.slots.previous else None, self._chosen]
        self.profile = self.former()
        update = (await self.ledger.load()).update
        if update is None:
            return
        now = started(update)
        if now != update:
            await self.ledger.write(now)
        if now.state == "rollback":  # what serves badly is better than nothing
            self._left.append(lambda: self.slots.get(now.rollout.profile_sha256))
        if now.serves_new:
            new = self.slots.get(now.rollout.profile_sha256)
            self._on_trial = True
            if new is None:
                await self._give_up("its profile is missing or damaged")
            else:
                self.profile = new

    def former(self) -> Profile | None:
        """What is committed, or else chosen."""
        return self.slots.in_charge() or self._chosen()

    async def prepare(self) -> Settings:
        """What to start with; its model's file is verified and `pinned` where a fleet put it in charge.

        Raises SettingsError, ModelFileError.
        """
        settings = located(self.profile, self._settings_of(self.profile))
        from_fleet = self.profile is not None and self.slots.get(digest_of(self.profile)) is not None
        self.pinned = await asyncio.to_thread(pin, self.profile, settings) if from_fleet else None
        return settings

    def terms(self, started: Settings) -> Terms:
        """How settings come from profiles in a node that was started with these."""
        return Terms(started, self._settings_of)

    def join(self, fleet: Fleet, node: str, peers: Callable[[], Sequence[Peer]]) -> ChunkStore | None:
        """Belong to the fleet that the settings name, if they do; gives the chunks that `peers` may ask for.

        `node` is this one's id in the fleet, "" where nobody has given it one.
        """
        self.node_id = node or self.node_id
        if not fleet.url:
            return None
        if self.database is None:
            raise SettingsError(
                "fleet.url is set, but a node on port 0 keeps nothing that a fleet needs.",
                hint="Set server.port, and leave --profile to the fleet.",
            )
        self.node_id = self.node_id or node_id(home() / "fleet")
        chunks = ChunkStore()
        trust = Trust(fleet, self.database)
        self._clock = wall(trust.least_time)
        self.manager = self.manager or FleetManager(fleet, trust, chunks, self.node_id, peers)
        return chunks

    def updater(self, host: Host, started: Settings, powered: Callable[[], bool], report: Report) -> Updater:
        """What changes the model of `host` while it runs: by an operator's word, or by the fleet's."""
        return Updater(
            self.ledger,
            self.slots,
            Applier(host, self.terms(started), self.profile),
            self._clock,
            self.former,
            Membership(self.node_id, started.fleet.ring, started.fleet.poll_s),
            self.manager,
            self.report or report,
            refuse_other_machine,
            powered,
        )

    async def fall_back(self, error: NodeError) -> bool:
        """What was to be started with does not start; whether there is something else to try, as `profile`."""
        failed = self.profile
        if self._on_trial:
            await self._give_up(error.message)
            return True
        while self._left:
            self.profile = self._left.pop(0)()
            if (self.profile and self.profile.text) != (failed and failed.text):
                told = {"reason": error.message, "profile": self.profile.name if self.profile else "none"}
                log.error("the committed profile does not start; another one is tried", extra=told)
                return True
        return False

    async def close(self) -> None:
        """After the last use."""
        if self.database is not None:
            await self.database.close()

    async def _give_up(self, reason: str) -> None:
        update = (await self.ledger.load()).update
        assert update is not None, "it was on trial"
        log.error("the new profile does not start; the former one is served", extra={"reason": reason})
        self._on_trial = False
        self.profile = self.former()
        if update.state == "probation":  # a committed one may be in charge by now; then the next best comes
            await self.ledger.write(step(update, "broken", reason))


def refuse_other_machine(profile: Profile) -> None:
    """Raise SettingsError unless this machine has what the profile asks for. Looks at all of the machine."""
    fit.refuse_other_hardware(profile, hardware.inspect(home(), nvml=load_nvml()))


def node_id(folder: Path) -> str:
    """A name for this node that stays: for one that no authority has given one. Raises SettingsError."""
    file = folder / "node-id"
    try:
        if file.exists() and (kept := file.read_text(encoding="ascii").strip()[:64]):
            return kept
        made = secrets.token_hex(8)
        durable.make_folder(folder)
        durable.write(file, made.encode(), 0o600)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"Cannot use {file}: {error}.") from error
    return made


def over(settings: Settings) -> Callable[[Profile | None], Settings]:
    """Profiles above these settings, for a node that has no layers of its own."""

    def of(profile: Profile | None) -> Settings:
        if profile is None:
            return settings
        tree = msgspec.to_builtins(settings)
        for section, values in profile.layer.items():
            tree[section].update(values)
        return msgspec.convert(tree, Settings)

    return of
