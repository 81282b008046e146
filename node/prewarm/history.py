"""The prompts that this node was asked: noted, kept where they may be, offered for warming. The shell around `tree`.

Every prompt is noted in memory. What enough sessions share is written to the store some seconds after it changed, and
is there again at the next start. Evidence below the quorum stays in memory and dies with the process, on purpose: even
as keyed digests it would tell a thief of the disk, who has the key with it, which of his guesses were asked; prompts
are short and guessable. Where all sessions are one owner's, `prewarm.min_sessions = 1` keeps everything instead.

Belongs to the event loop's thread. Nothing of a prompt is logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from node.errors import StoreFailed
from node.generation import Request
from node.prewarm.demand import HalfLives
from node.prewarm.offer import offer
from node.prewarm.plan import Candidate
from node.prewarm.tree import Match, Node, PrefixTree, pack, unpack
from node.settings import Prewarm
from node.store.prefixes import PrefixRow, PrefixStore

log = logging.getLogger(__name__)

SAVE_AFTER_S = 30.0  # flash wears, so counts are written together
SAVE_NEW_AFTER_S = 2.0  # but what has just become shared would be lost with a power cut: it is rare, and worth a write
_LONGEST = 32_768  # tokens of a prompt that are noted
_EXPIRE_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Figures:
    """How big the history is: nodes, those of them that are shared, their token ids, bytes in memory, and its begin."""

    nodes: int
    shared: int
    tokens: int
    bytes: int
    since: float


class History:
    """Notes prompts and offers candidates. `load` it before the first prompt, `close` it after the last."""

    def __init__(
        self,
        settings: Prewarm,
        store: PrefixStore | None = None,
        clock: Callable[[], float] = time.time,
        save_after_s: float = SAVE_AFTER_S,
    ) -> None:
        """`save_after_s` are real seconds, also where `clock` is not the wall's."""
        self._save_after_s = save_after_s
        self._settings = settings
        self._store = store
        self._clock = clock
        self._templates: list[bytes] = []
        self._tree = self._new_tree(clock())
        self._offered: dict[int, Node] = {}
        self._stored: set[int] = set()  # nodes that the store has, at some count
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._expires = clock() + _EXPIRE_EVERY_S

    async def load(self) -> None:
        """Take up what is stored, or erase it where prewarming is off; raises StoreFailed."""
        if self._store is None:
            return
        if not self._settings.enabled:
            await self._store.forget(self._clock())
            return
        since, rows = await self._store.load(self._terms(), self._clock(), self._settings.max_age_s)
        self._tree = self._new_tree(since)
        lost = _restore(self._tree, rows)
        self._stored = set(self._tree.shared)
        self._pin_templates()
        log.info("prompt history loaded", extra={"prefixes": len(self._tree.shared), "unreadable": lost})

    def pin(self, ids: Sequence[int]) -> None:
        """These tokens are part of a template: offer them, and what they begin with, to every tenant."""
        self._templates.append(pack(ids))
        self._tree.pin(self._templates[-1])

    def note(self, request: Request) -> int | None:
        """A prompt was asked. Gives the end that its state in memory may be held under; None where it may not."""
        if not self._settings.enabled or request.kind != "generate" or request.continued:
            return None
        caller, now = request.caller, self._clock()
        session = hash((caller.tenant, caller.user, caller.session)) if caller.session else None
        end = self._tree.add(self._tenant(caller.tenant), pack(request.prompt[:_LONGEST]), session, now)
        if now >= self._expires:
            self._expires = now + _EXPIRE_EVERY_S
            self._tree.expire(now, self._settings.max_age_s)
        if self._store is not None and self._tree.changed:
            self._save_within(min(self._save_after_s, SAVE_NEW_AFTER_S) if self.has_new else self._save_after_s)
        return end.id

    @property
    def has_new(self) -> bool:
        """Whether something has become shared since it was last written."""
        return any(id in self._tree.shared and id not in self._stored for id in self._tree.changed)

    def _save_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._save)

    def candidates(self, held: Iterable[int] = ()) -> list[Candidate]:
        """What may be warm; `held` are ends that `note` gave, whose states are in memory."""
        offered = offer(self._tree, held, self._clock())
        self._offered = {candidate.id: node for candidate, node in offered.items()}
        return list(offered)

    def tokens(self, id: int) -> list[int]:
        """The token ids of a candidate that was offered last; raises KeyError when it is gone."""
        return unpack(self._offered[id].prefix())

    def match(self, tenant: str, ids: Sequence[int]) -> Match:
        """How much of a prompt is known."""
        return self._tree.match(self._tenant(tenant), pack(ids))

    @property
    def figures(self) -> Figures:
        """How big it is."""
        tree = self._tree
        return Figures(tree.nodes, len(tree.shared), tree.tokens, tree.size, tree.since)

    async def forget(self) -> int:
        """Erase everything but templates, in memory and store; returns how many prefixes were known. See `store`."""
        self._cancel_timer()
        known = len(self._tree.shared)
        self._tree, self._offered = self._new_tree(self._clock()), {}
        self._stored = set()
        self._pin_templates()
        if self._store is not None:
            await self._store.forget(self._clock())
        return known

    async def close(self) -> None:
        """Write what is not written yet."""
        self._cancel_timer()
        if self._task is not None:
            await self._task
        await self._write()

    async def let_go(self) -> None:
        """The same, and nothing from then on: the store is somebody else's."""
        await self.close()
        self._cancel_timer()
        self._store = None

    def _new_tree(self, since: float) -> PrefixTree:
        settings = self._settings
        half_lives = HalfLives(settings.short_half_life_s, settings.long_half_life_s)
        return PrefixTree(settings.min_sessions, settings.history_bytes, half_lives, since)

    def _terms(self) -> str:
        """What the stored prefixes were kept for; those that were kept on other terms are erased."""
        tenants = "all tenants" if self._settings.share_between_tenants else "a tenant"
        return f"{self._settings.min_sessions} sessions of {tenants}"

    def _pin_templates(self) -> None:
        for ids in self._templates:
            self._tree.pin(ids)

    def _tenant(self, tenant: str) -> str:
        return "" if self._settings.share_between_tenants else tenant

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _save(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Store what changed; what cannot be stored now is tried again with what changes next."""
        tree = self._tree
        if self._store is None or not tree.changed:
            return
        changed, tree.changed = tree.changed, set()
        rows = [_row(node) for id in changed if (node := tree.shared.get(id))]
        self._stored = (self._stored | changed).intersection(tree.shared)
        try:
            await self._store.save(rows, changed.difference(tree.shared))
        except StoreFailed as error:
            tree.changed |= changed
            self._stored -= changed
            log.error("prompt history could not be stored", extra={"reason": error.message})


def _row(node: Node) -> PrefixRow:
    root, parent = node.root(), node.parent
    assert parent is not None, "roots are not stored"
    assert root.tenant is not None, "templates are not stored"
    hours = b"" if node.hours is None else node.hours.tobytes()
    return PrefixRow(node.id, parent.id, root.tenant, node.edge, node.short, node.long, node.last, hours)


def _restore(tree: PrefixTree, rows: Iterable[PrefixRow]) -> int:
    """Build the tree from its rows, parents first; returns how many did not fit in."""
    below: dict[int, list[PrefixRow]] = {}
    for row in rows:
        below.setdefault(row.parent, []).append(row)
    waiting: list[tuple[Node | None, PrefixRow]] = [(None, row) for row in below.pop(0, [])]
    lost = 0
    while waiting:
        parent, row = waiting.pop()
        try:
            node = tree.restore(row.id, row.tenant, parent, row.edge)
        except ValueError:
            lost += 1
            continue
        node.short, node.long, node.last = row.short, row.long, row.last
        node.hours = array("f", row.hours) if row.hours else None
        waiting += [(node, child) for child in below.pop(row.id, [])]
    tree.changed.clear()
    return lost + sum(map(len, below.values()))
