"""The fleet's manager as a node sees it: what is wanted (`trust`), and the bytes that it takes (`fetch`)."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from node.errors import NodeError
from node.fleet import part, profiles
from node.fleet.budget import Budget
from node.fleet.directive import Rollout
from node.fleet.fetch import Fetch, Fetched
from node.fleet.origin import Origin
from node.fleet.profile import Profile
from node.fleet.repository import address, base_of, tls_context
from node.fleet.share import ChunkStore, Peer
from node.fleet.trust import Directives, Trust
from node.models import catalog, weights
from node.models.download import Report
from node.settings import Fleet

log = logging.getLogger(__name__)

_BROUGHT = re.compile(r"([0-9a-f]{64}\.gguf)(\.part|\.flight)?")


class Manager:
    """`refresh` and `profile` are `trust`'s; `fetch` puts a profile's model file in place, from wherever it is."""

    def __init__(
        self,
        settings: Fleet,
        trust: Trust,
        store: ChunkStore,
        node: str = "",
        peers: Callable[[], Sequence[Peer]] = lambda: (),
    ) -> None:
        self._settings, self._trust, self._store = settings, trust, store
        self._node, self._peers = node, peers
        store.installed = _installed
        self.last: Fetched | None = None
        "where the bytes of the last fetch came from"

    async def refresh(self) -> Directives:
        """Look at the repository; raises FleetError, SettingsError, StoreFailed. The time rises with it."""
        await self._trust.keep_time()
        return await self._trust.refresh()

    async def profile(self, rollout: Rollout) -> Profile:
        """The profile that a rollout chooses; raises FleetError."""
        return await self._trust.profile(rollout)

    async def fetch(self, profile: Profile, report: Report = lambda stage, done, total: None) -> None:
        """Have the profile's model file where `model_path` says, or mend it there. Raises FleetError, SettingsError."""
        if not profile.model_sha256 or profile.settings.engine.kind == "echo":
            return
        target = model_path(profile)
        index = await self._trust.index(profile.model_sha256)
        job = Fetch(
            index,
            target,
            await asyncio.to_thread(origins, self._settings),
            node=self._node,
            peers=self._peers,
            seeds=await asyncio.to_thread(_installed),
            store=self._store,
            report=report,
            patience_s=self._settings.stall_s,
            lan_rate=self._settings.lan_rate_bytes,
        )
        self.last = await job.run()
        log.info(
            "a model file is here",
            extra={
                "file": target.name,
                "own_bytes": self.last.kept + self.last.own,
                "neighbours_bytes": self.last.neighbours,
                "far_bytes": self.last.cost,
            },
        )

    async def tidy(self, keep: Collection[Profile]) -> None:
        """Remove model files that the fleet brought and that none of these profiles names. Never raises."""
        await asyncio.to_thread(_tidy, {profile.model_sha256 for profile in keep})


def _tidy(keep: set[str]) -> None:
    folder = weights.folder()
    try:
        if profiles.in_use_file().exists():  # what a start serves where the fleet's profiles are of no use
            keep = keep | {profiles.read(profiles.in_use_file()).model_sha256}
        kept = {f"{sha256}.gguf" for sha256 in keep} | {entry.file for entry in catalog.load().entries}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            found = _BROUGHT.fullmatch(path.name)
            if found and found[1] not in kept and not part.is_growing(folder / found[1]):
                path.unlink(missing_ok=True)
                log.info("a model file that no profile names is removed", extra={"file": path.name})
    except (OSError, NodeError) as error:
        log.warning("old model files cannot be removed", extra={"reason": str(error)})


def model_path(profile: Profile) -> Path:
    """Where a profile's model file is, or will be: the catalogue's where it is that one, else one of the fleet's."""
    known = next((entry for entry in catalog.load().entries if entry.id == profile.settings.model.name), None)
    if known is not None and known.sha256 == profile.model_sha256:
        return weights.path_of(known)
    return weights.folder() / f"{profile.model_sha256}.gguf"


def origins(settings: Fleet) -> list[Origin]:
    """The far places to fetch from, in order; raises SettingsError."""
    tls, stall_s, http = tls_context(settings), settings.stall_s, settings.allow_http
    found = []
    if settings.mirror:
        base = base_of(settings.mirror, allow_http=True, key="fleet.mirror")
        found.append(
            Origin(base, Budget(rate=settings.lan_rate_bytes), tls=tls, stall_s=stall_s, http=True, counts=False)
        )
    limit = settings.metered_bytes if settings.metered else settings.unmetered_bytes
    budget = Budget(limit, settings.rate_bytes, settings.metered)
    return [*found, Origin(address(settings), budget, tls=tls, stall_s=stall_s, http=http)]


def _installed() -> list[Path]:
    """Model files of this node: what a new one shares with them need not come from anywhere."""
    folder = weights.folder()
    return sorted(folder.glob("*.gguf")) if folder.is_dir() else []
