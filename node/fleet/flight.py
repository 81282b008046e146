"""Chunks on their way from a far place into a part: packed ones one by one, plain ones as they follow each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from node.fleet import chunks, places
from node.fleet.origin import Missing, Origin
from node.fleet.part import Part

Landed = Callable[[Origin, int, bytes, bool], Awaitable[bool]]
"""Called with a chunk that has come whole, and whether an earlier run began it; returns whether it is the right one."""


class Flight:
    """`fly` brings a run of chunks and tells `landed` of each; raises what `Origin.stream` raises."""

    def __init__(self, there: Part, landed: Landed) -> None:
        self._part, self._landed = there, landed
        self._plain_only: set[int] = set()  # whose packed form was wrong or missing

    def packed(self, number: int) -> bool:
        """Whether the chunk comes in its packed form."""
        return bool(self._part.index.chunks[number].packed) and number not in self._plain_only

    async def fly(self, origin: Origin, run: Sequence[int]) -> None:
        """Bring these; a run is one packed chunk, or plain ones in the order of the file."""
        if self.packed(run[0]) and origin.ranges:
            await self._fly_packed(origin, run[0])
        else:
            await self._fly_plain(origin, run)

    async def _fly_packed(self, origin: Origin, number: int) -> None:
        chunk = self._part.index.chunks[number]
        raw = bytearray(self._part.flying(number, True))
        resumed = len(raw)
        self._part.fly(number, True, resumed, origin.counts)
        try:
            async with aclosing(origin.stream(places.chunk_file(chunk.sha256), resumed, chunk.packed)) as pieces:
                async for piece in pieces:
                    self._part.flew(len(raw), piece)
                    raw += piece
        except Missing:
            self._plain_only.add(number)
            return
        try:
            data = await asyncio.to_thread(chunks.unpack, bytes(raw), chunk.length)
        except ValueError:
            data = b""
        if not await self._land(origin, number, data, resumed):
            self._plain_only.add(number)

    async def _fly_plain(self, origin: Origin, run: Sequence[int]) -> None:
        index, offsets = self._part.index, self._part.offsets
        raw = bytearray(self._part.flying(run[0], False))
        resumed, left = len(raw), list(run)
        at = offsets[run[0]] + resumed
        end = offsets[run[-1]] + index.chunks[run[-1]].length
        self._part.fly(run[0], False, resumed, origin.counts)
        async with aclosing(origin.stream(places.model_file(index.sha256), at, end)) as pieces:
            async for piece in pieces:
                view = memoryview(piece)
                while view and left:
                    gap = 0 if raw else max(0, min(len(view), offsets[left[0]] - at))  # chunks that are there already
                    taken = view[gap : gap + index.chunks[left[0]].length - len(raw)]
                    self._part.flew(len(raw), taken)
                    raw += taken
                    view, at = view[gap + len(taken) :], at + gap + len(taken)
                    if len(raw) < index.chunks[left[0]].length:
                        continue
                    if not await self._land(origin, left.pop(0), bytes(raw), resumed):
                        return
                    raw.clear()
                    resumed = 0
                    if left:
                        self._part.fly(left[0], False, 0, origin.counts)

    async def _land(self, origin: Origin, number: int, data: bytes, resumed: int) -> bool:
        right = await self._landed(origin, number, data, bool(resumed))
        if not right:
            self._part.fly(number, False, 0, origin.counts)  # nothing of it is to be gone on from
        return right
