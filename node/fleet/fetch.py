"""A model's file from wherever its chunks are, none of which counts before its hash is right.

In this order: the node's own old files; its neighbours; a mirror on this site; the fleet's repository. A chunk that no
neighbour has, and that none of them will fetch (`claims`), is taken from far away. Far places are asked for runs of
chunks, one after the other, within what that way may cost; on a way that is paid by the byte nothing begins that would
not fit into its budget to the end.

Whatever ends a fetch, the next one goes on from there: `part` says what is there by hashing it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from node.errors import FetchError, Unreachable
from node.fleet import claims, part
from node.fleet.budget import Budget
from node.fleet.directive import ChunkIndex
from node.fleet.flight import Flight
from node.fleet.origin import Missing, Origin, Trouble
from node.fleet.part import Part
from node.fleet.refusal import NoSource, NotRepository, OverBudget
from node.fleet.share import Absent, ChunkStore, Coming, Peer, Silent
from node.fleet.standing import Standing
from node.models.download import Report

log = logging.getLogger(__name__)

_ASKERS = 4
_AHEAD = 4  # chunks that wait for the far place, so that what neighbours said of them is still true
_ALONE_AHEAD = 64
_FRESH_S = 1.0  # for how long it is
_RUN_BYTES = 16 << 20  # most that is asked of a far place at once
_YIELD_S = 3.0  # for how long, once for each chunk, it is waited for who was let go first
_AGAIN_S = (0.2, 2.0)  # between two questions for a chunk that is coming
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # after trouble with a far place


@dataclass(slots=True)
class Fetched:
    """Where the bytes of a file came from. `origin` counts what was kept of far places, `cost` all that came."""

    kept: int = 0
    own: int = 0
    neighbours: int = 0
    origin: int = 0
    cost: int = 0
    bad: dict[str, int] = field(default_factory=dict)


class Fetch:
    """One file on its way to this node; `run` it once. A `share.Fetching`."""

    def __init__(
        self,
        index: ChunkIndex,
        target: Path,
        origins: Sequence[Origin],
        *,
        node: str = "",
        peers: Callable[[], Sequence[Peer]] = lambda: (),
        seeds: Sequence[Path] = (),
        store: ChunkStore | None = None,
        report: Report = lambda stage, done, total: None,
        patience_s: float = 60.0,
        lan_rate: int = 0,
        pauses_s: Sequence[float] = _PAUSES_S,
    ) -> None:
        """`origins` in the order of preference; `node` is this one's id; `patience_s` is how long a neighbour's word
        that a chunk is coming counts; `lan_rate` bounds bytes a second from neighbours, 0 does not."""
        self._index, self._target = index, target
        self._all_origins, self._origins = tuple(origins), list(origins)
        self._node, self._peers, self._seeds, self._report = node, peers, seeds, report
        self._store = store or ChunkStore()
        self._patience_s, self._pauses_s = patience_s, pauses_s
        self._lan = Budget(rate=lan_rate)  # one for all who ask neighbours
        self._numbers: dict[str, list[int]] = {}
        for number, chunk in enumerate(index.chunks):
            self._numbers.setdefault(chunk.sha256, []).append(number)
        self._part: Part | None = None
        self._standing = Standing()
        self._ready: dict[int, float] = {}  # chunks for the far place, and when neighbours were asked
        self._flying: set[int] = set()
        self._asking: set[int] = set()
        self._yielded: dict[int, float] = {}  # chunks that a neighbour before this one was let have, and since when
        self._coming: dict[int, tuple[float, float, float]] = {}  # since when, when to ask again, and after how long
        self._able = bool(self._origins)
        self._news = asyncio.Event()
        self._failures: list[str] = []
        self._over, self._dear = False, ""
        self.fetched = Fetched()

    async def run(self) -> Fetched:
        """Make the target whole, or raise FetchError or Unreachable and leave what can be gone on from."""
        try:
            return await self._run()
        except ExceptionGroup as group:
            raise _first(group) from group
        except OSError as error:
            raise FetchError(f"Cannot write {self._target}: {error.strerror or error}.") from error
        finally:
            for origin in self._all_origins:
                await origin.close()

    async def _run(self) -> Fetched:
        with part.opened(self._target, self._index) as self._part:
            await asyncio.to_thread(self._take_up, self._part)
            self._store.begin(self)
            try:
                await self._gather(self._part)
            finally:
                self._store.end(self)
            self.fetched.cost = sum(origin.budget.spent for origin in self._all_origins)
            await asyncio.to_thread(self._part.settle)
        await asyncio.to_thread(self._store.hold, self._target)
        return self.fetched

    # What neighbours may ask (share.Fetching).

    def read(self, sha256: str) -> bytes | None:
        """A chunk that is here."""
        for number in self._numbers.get(sha256, ())[:1]:
            return self._part.read(number) if self._part is not None else None
        return None

    def claims(self, sha256: str, asker: str) -> bool:
        """Whether this node fetches that chunk already, or will before the asker does."""
        numbers = self._numbers.get(sha256)
        if not numbers or not self._able or self._part is None:
            return False
        self._standing.stirred(asker)  # it fetches, too, so it has something or will
        number = numbers[0]
        if number in self._flying or number in self._ready:
            return True
        if not (self._node and asker) or claims.before(self._node, asker, sha256):
            return bool(self._node and asker)
        self._yielded.setdefault(number, time.monotonic())
        return False

    # In a thread.

    def _take_up(self, there: Part) -> None:
        size, name = self._index.size, self._target.name
        there.rehash(lambda done: self._report(f"looking at {name}", done, size))
        self.fetched.kept = size - there.missing_bytes
        spent = there.spent()
        for origin in self._origins:
            origin.budget.spent = spent if origin.counts else 0  # what earlier runs cost counts
        for seed in self._seeds:
            with suppress(OSError):  # a file that went away is no seed
                self._store.hold(seed)
        for number in sorted(there.missing):
            self._from_own(there, number)

    def _from_own(self, there: Part, number: int) -> None:
        with suppress(Absent, Coming, OSError):
            if there.put(number, self._store.read(self._index.chunks[number].sha256)):
                there.missing.discard(number)
                self.fetched.own += self._index.chunks[number].length

    # On the event loop.

    async def _gather(self, there: Part) -> None:
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._ask_neighbours(there)) for _ in range(_ASKERS)]
            work.append(group.create_task(self._fetch_from_far(there)))
            group.create_task(self._until_whole(there, work))

    async def _until_whole(self, there: Part, work: Sequence[asyncio.Task[None]]) -> None:
        total = self._index.size
        while there.missing:
            self._news.clear()
            self._report(f"fetching {self._target.name}", total - there.missing_bytes, total)
            await self._news.wait()
        self._report(f"fetching {self._target.name}", total, total)
        for task in work:
            task.cancel()

    # Neighbours.

    async def _ask_neighbours(self, there: Part) -> None:
        while True:
            number = self._next_question(there)
            if number is None:
                await asyncio.sleep(0.05)
                continue
            self._asking.add(number)
            try:
                await self._ask(there, number)
            finally:
                self._asking.discard(number)

    def _next_question(self, there: Part) -> int | None:
        """A chunk to ask neighbours for: those first that this node would have to fetch itself."""
        now = _now()
        for number, asked in list(self._ready.items()):
            if self._peers() and now - asked > _FRESH_S and number not in self._flying:
                del self._ready[number]  # what they said is too old
        busy = self._asking | self._flying | self._ready.keys()
        due = [number for number in there.missing - busy if self._coming.get(number, (0, 0, 0))[1] <= now]
        if not due:
            return None
        known = [number for number in due if number in self._coming]
        peers = self._peers()
        if len(self._ready.keys() - self._flying) >= (_AHEAD if peers else _ALONE_AHEAD):
            return min(known, key=lambda number: self._coming[number][1]) if known else None
        others = [peer.id for peer in peers]
        return min(due, key=lambda number: (claims.place(self._node, others, self._sha(number)), number))

    def _sha(self, number: int) -> str:
        return self._index.chunks[number].sha256

    async def _ask(self, there: Part, number: int) -> None:
        """Get it, or learn that it is coming, or give it to the far place."""
        sha256, peers = self._sha(number), {peer.id: peer for peer in self._peers()}
        for name in claims.order(peers, sha256):
            if not self._standing.may_ask(name, _now()):
                continue
            try:
                data = await peers[name].get(sha256)
            except Absent:
                self._standing.missed(name, _now())
            except Silent as error:
                self._standing.silent(name, _now())
                log.info("a neighbour gives no chunks", extra={"peer": name, "reason": str(error)})
            except Coming:
                self._standing.good(name)
                if self._may_wait(number):
                    return
            else:
                if await self._put(number, data):
                    self._standing.good(name)
                    self.fetched.neighbours += len(data)
                    await asyncio.sleep(self._lan.spend(len(data), _now()))
                    return
                self._is_bad(name)
        if number not in there.missing:
            return
        if _now() - self._yielded.get(number, -_YIELD_S) < _YIELD_S and self._may_wait(number):
            return  # who was told to go ahead meanwhile is fetching it
        self._ready[number] = _now()

    def _may_wait(self, number: int) -> bool:
        """Whether to wait for a neighbour that fetches it; not for ever."""
        now = _now()
        since, _, pause = self._coming.get(number, (now, now, _AGAIN_S[0] / 2))
        pause = min(pause * 2, _AGAIN_S[1])
        self._coming[number] = (since, now + pause * random.uniform(0.7, 1.3), pause)
        return now - since < self._patience_s

    async def _put(self, number: int, data: bytes) -> bool:
        """Write a chunk wherever the file has it, if it is the right one."""
        assert self._part is not None, "a fetch has a part while it runs"
        twins = {number, *(self._part.missing & set(self._numbers[self._sha(number)]))}
        for twin in twins:
            if not await asyncio.to_thread(self._part.put, twin, data):
                return False
        for twin in twins:
            self._part.missing.discard(twin)
            self._coming.pop(twin, None)
            self._ready.pop(twin, None)
        self._news.set()
        return True

    def _is_bad(self, name: str) -> bool:
        """It sent a wrong chunk; whether it is asked no more."""
        self.fetched.bad[name] = self.fetched.bad.get(name, 0) + 1
        dropped = self._standing.bad(name)
        if dropped:
            log.warning("a source sent wrong chunks and is asked no more", extra={"source": name})
        return dropped

    # Far places.

    async def _fetch_from_far(self, there: Part) -> None:
        flight, failures = Flight(there, self._landed), 0
        while True:
            run = self._next_run(there, flight)
            if not run:
                await asyncio.sleep(0.02)
                continue
            if (origin := self._affordable(there)) is None:
                await self._wait_for_neighbours(there)
                continue
            self._flying.update(run)
            before = len(there.missing)
            try:
                await flight.fly(origin, run)
                failures = 0
            except (Trouble, TimeoutError, NotRepository) as error:
                failures = 1 if len(there.missing) < before else failures + 1
                await self._stumble(origin, error, failures)
            except OverBudget as error:
                self._over = True
                self._leave(origin, error.message)
            finally:
                self._flying.difference_update(run)
                for number in run:
                    self._ready.pop(number, None)

    def _next_run(self, there: Part, flight: Flight) -> list[int]:
        """Chunks that follow each other, or one that comes packed; all that is missing where ranges are not known."""
        ready = sorted(number for number in self._ready if number in there.missing)
        if not ready:
            return []
        if self._origins and not self._origins[0].ranges:
            return sorted(there.missing)
        if flight.packed(ready[0]):
            return ready[:1]
        run: list[int] = []
        size = 0
        for number in ready:
            length = self._index.chunks[number].length
            if run and (number != run[-1] + 1 or size + length > _RUN_BYTES or flight.packed(number)):
                break
            run.append(number)
            size += length
        return run

    def _affordable(self, there: Part) -> Origin | None:
        """The place to ask. One whose budget would not last to the end is not even begun with."""
        each = [self._index.chunks[number] for number in there.missing]
        need = sum(chunk.packed or chunk.length for chunk in each) - there.flown()
        found = next((origin for origin in self._origins if origin.budget.affords(need)), None)
        self._able = found is not None
        if found is None and self._origins:
            self._over = True
            origin = self._origins[-1]
            self._dear = (
                f"it needs {need:,} bytes more from {origin.base}, which has cost {origin.budget.spent:,} of at most "
                f"{origin.budget.limit:,} bytes"
            )
        return found

    def _leave(self, origin: Origin, reason: str) -> None:
        log.warning("a place is not asked any more", extra={"place": origin.base, "reason": reason})
        if origin in self._origins:
            self._origins.remove(origin)
        self._failures.append(reason.rstrip("."))
        self._able = bool(self._origins)

    async def _stumble(self, origin: Origin, error: Exception, failures: int) -> None:
        reason = str(error) or "nothing came for too long"
        if failures > len(self._pauses_s) or isinstance(error, Missing):
            self._leave(origin, f"{origin.base}: {reason}")
            return
        log.info("a place is asked again", extra={"place": origin.base, "reason": reason})
        await asyncio.sleep(self._pauses_s[failures - 1])

    async def _wait_for_neighbours(self, there: Part) -> None:
        """No far place can be asked: go on as long as neighbours bring something."""
        until = _now() + (self._patience_s if self._peers() else 0.0)
        missing = len(there.missing)
        while _now() < until:
            self._ready.clear()
            await asyncio.sleep(0.2)
            if len(there.missing) < missing:
                return
        words = "; ".join(dict.fromkeys([*self._failures, *filter(None, [self._dear])]))
        kind = OverBudget if self._over else NoSource
        raise kind(
            f"{self._target.name} cannot be fetched: {words or 'there is no place to fetch it from'}. "
            f"{there.missing_bytes:,} bytes are missing.",
            hint="What has come is kept; the next try goes on from there.",
        )

    async def _landed(self, origin: Origin, number: int, data: bytes, resumed: bool) -> bool:
        """A chunk has come whole. One that was begun by an earlier run and is wrong may be that run's fault."""
        if await self._put(number, data):
            self.fetched.origin += len(data)
            return True
        if not resumed and self._is_bad(origin.base):
            self._leave(origin, f"{origin.base} sends other bytes than were signed")
        return False


def _now() -> float:
    return time.monotonic()


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """One error out of those of several tasks: ours before others."""
    flat = [error for error in group.exceptions if not isinstance(error, ExceptionGroup)]
    ours = [error for error in flat if isinstance(error, FetchError | Unreachable)]
    other = next((error for error in flat if isinstance(error, OSError)), None)
    if ours:
        return ours[0]
    return FetchError(f"The fetch broke off: {other}.") if other else flat[0]
