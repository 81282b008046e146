"""The receiving half of one reply: chunks in order, whatever order, copies, symbols and shards they come in.

What it holds is bounded: at most `AHEAD` chunks beyond the next one, the short ones of the last `HISTORY` chunks
(repair symbols cover them), `SYMBOLS` symbols, `PAIRS` pairs, and one flight of at most twice `MAX_FLIGHT` shards.
Chunks ahead and shards of all slots of a link share one `Store` of `HELD` bytes, symbols, pairs and the last chunks
another of `KEPT`. What goes beyond is dropped as if it had been lost on the way; it is sent again. The next chunk
itself needs no store, so a full one cannot stop a text.

The end tells how many chunks and bytes the text has, and its CRC-32: the text is whole when all agree, and wrong, for
good, when they do not.
"""

from __future__ import annotations

from node.errors import LinkError
from node.link import packet
from node.link.fec import LENGTH, MAX_SHARD, WINDOW, Symbol, recover
from node.link.flight import MAX_FLIGHT, join
from node.link.frame import crc32
from node.link.packet import Data, End, Flight, Got, Repair
from node.link.pairs import Pair, pair_in, solve

AHEAD = 4096
HELD = 1 << 20  # bytes, for all slots of a link
KEPT = 256 << 10
HISTORY = 128
SYMBOLS, PAIRS = 24, 8
_ENTRY, _SYMBOL = 64, 128  # bytes that a chunk costs beside its own
_RANGES = 16  # missing ranges told in one GOT


class Room:
    """Bytes that may be taken; `free` are left."""

    def __init__(self, size: int) -> None:
        self.free = size

    def take(self, size: int) -> bool:
        """Take room for `size` bytes, if there is."""
        if size > self.free:
            return False
        self.free -= size
        return True


class Store(Room):
    """What the slots of a link share: room for what came out of order, and `kept`, for what only serves repair."""

    def __init__(self) -> None:
        super().__init__(HELD)
        self.kept = Room(KEPT)


class Receiver:
    """One slot's incoming chunks; `store` is shared by the slots of a link."""

    def __init__(self, slot: int, first: int = 0, crc: int = 0, size: int = 0, store: Store | None = None) -> None:
        self.slot = slot
        self.next = first  # every chunk before has been delivered
        self.whole = False
        self.wrong = False
        self.end: End | None = None
        self.repaired = 0  # chunks that FEC gave
        self._size, self._crc = size, crc
        self._recent: dict[int, bytes] = {}  # delivered lately, in order
        self._ahead: dict[int, bytes] = {}  # come, but not next yet
        self._store = store or Store()
        self._highest = first - 1  # largest chunk number heard of
        self._symbols: list[Symbol] = []
        self._pairs: list[Pair] = []
        self._flight: tuple[int, int, int] | None = None
        self._shards: dict[int, bytes] = {}
        self._landed = False  # every chunk of the flight is known

    @property
    def done(self) -> bool:
        """Whether nothing more can come of it."""
        return self.whole or self.wrong

    @property
    def gaps(self) -> bool:
        """Whether a chunk is missing that a later one, or the end, is known of."""
        return self._highest >= self.next + len(self._ahead)

    def take(self, block: Data | Repair | Flight | End) -> list[bytes]:
        """What a block makes deliverable."""
        match block:
            case Data():
                return self.data(block)
            case Flight():
                return self.flight(block)
            case End():
                return self.ended(block)
            case Repair():
                self.repair(block)
                return []

    def data(self, block: Data) -> list[bytes]:
        """Chunks from a DATA block; gives those that are next in order."""
        if self.done:
            return []
        first = self._number(block.first)
        for number, chunk in enumerate(block.chunks, first):
            self._take(number, chunk)
        if block.parity and self.gaps and self._store.kept.take(len(block.parity) + _SYMBOL):
            self._pairs.append(pair_in(block, first))
            self._keep_pairs(self._pairs[-PAIRS:])
        return self._deliver()

    def repair(self, block: Repair) -> None:
        """Symbols from a REPAIR block; `mend` uses them."""
        if not 0 < block.count <= WINDOW:
            raise LinkError(f"A symbol cannot cover {block.count} chunks.")
        first = self._number(block.first)
        last = first + block.count - 1
        self._highest = max(self._highest, min(last, self.next + AHEAD))
        if self.done or last < self.next or first < self.next - HISTORY:
            return
        for index, symbol in enumerate(block.symbols):
            if self._store.kept.take(len(symbol) + _SYMBOL):
                self._symbols.append(Symbol((block.symbol + index) % 128, first, block.count, symbol))
        self._keep_symbols(self._symbols[-SYMBOLS:])

    def mend(self) -> list[bytes]:
        """What follows from symbols, once all of a datagram is known: solving for each block would cost too much."""
        if self.done or not (self._symbols or self._pairs) or not self.gaps:
            return []
        known = self._recent | self._ahead
        found = recover(self._symbols, known) if self._symbols else {}
        found |= solve(self._pairs, known | found)
        self.repaired += len(found)
        for number, chunk in found.items():
            self._take(number, chunk)
        return self._deliver()

    def flight(self, block: Flight) -> list[bytes]:
        """A shard of a flight; the chunks of a data shard count at once, the rest when enough have come."""
        if self.done:
            return []
        if not 0 < block.data <= MAX_FLIGHT or block.data + block.parity > 2 * MAX_FLIGHT:
            raise LinkError("A flight cannot have so many shards.")
        key = (block.flight, block.data, block.parity)
        if self._flight != key:
            self._drop_shards()
            self._flight, self._landed = key, False
        shards = self._shards
        if self._landed or block.index in shards or block.index >= block.data + block.parity:
            return []
        if not self._store.take(len(block.shard) + _ENTRY):
            return []
        shards[block.index] = block.shard
        fresh = [block.shard] if block.index < block.data else []
        if len(shards) >= block.data and any(index >= block.data for index in shards):
            whole = join(shards, block.data)
            self.repaired += sum(index not in shards for index in whole)
            fresh = list(whole.values())
            self._landed = True
            self._drop_shards()
        for shard in fresh:
            for inner in packet.decode(shard):
                if not isinstance(inner, Data):
                    raise LinkError("A flight carries chunks only.")
                for number, chunk in enumerate(inner.chunks, self._number(inner.first)):
                    self._take(number, chunk)
        return self._deliver()

    def ended(self, block: End) -> list[bytes]:
        """The END block: how the whole text must be."""
        if self.end is None:
            if block.chunks < self.next:
                self.wrong = True
                self.close()
                return []
            self.end = block
            self._highest = max(self._highest, min(block.chunks - 1, self.next + AHEAD))
        return self._deliver()

    def got(self) -> Got:
        """What to acknowledge."""
        ranges: list[tuple[int, int]] = []
        at = self.next
        for number in sorted(self._ahead):
            if number > at or not ranges:
                ranges.append((number - at, 0))
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
            at = number + 1
        if self._highest >= at:
            ranges.append((self._highest + 1 - at, 0))
        return Got(self.slot, self.next, ranges[:_RANGES], self.whole, self.wrong)

    def _number(self, low: int) -> int:
        """The number nearest to the next one that has these low 16 bits."""
        return self.next + (low - self.next + 0x8000) % 0x10000 - 0x8000

    def _take(self, number: int, chunk: bytes) -> None:
        if number < self.next or number in self._ahead:
            return
        if number >= self.next + AHEAD or (number > self.next and not self._store.take(len(chunk) + _ENTRY)):
            return
        if number == self.next:
            self._store.free -= len(chunk) + _ENTRY  # for a moment
        self._ahead[number] = chunk
        self._highest = max(self._highest, number)

    def _deliver(self) -> list[bytes]:
        out = []
        while (chunk := self._ahead.pop(self.next, None)) is not None:
            out.append(chunk)
            if len(chunk) <= MAX_SHARD - LENGTH and self._store.kept.take(len(chunk) + _ENTRY):
                self._recent[self.next] = chunk
            self.next += 1
            self._store.free += len(chunk) + _ENTRY
            self._size += len(chunk)
            self._crc = crc32(chunk, self._crc)
        self._highest = max(self._highest, self.next - 1)
        if out:
            self._forget()
        if self.end is not None and self.next >= self.end.chunks:
            self._judge(self.end)
        return out

    def _forget(self) -> None:
        while len(self._recent) > HISTORY:
            self._store.kept.free += len(self._recent.pop(next(iter(self._recent)))) + _ENTRY
        if self._symbols:
            self._keep_symbols([one for one in self._symbols if one.first + one.count > self.next])
        if self._pairs:
            self._keep_pairs([one for one in self._pairs if one.newer.stop > self.next])

    def _keep_pairs(self, kept: list[Pair]) -> None:
        """As `_keep_symbols`."""
        before, self._pairs = self._pairs, kept
        self._store.kept.free += sum(len(one.parity) + _SYMBOL for one in before)
        self._store.kept.free -= sum(len(one.parity) + _SYMBOL for one in kept)

    def _keep_symbols(self, kept: list[Symbol]) -> None:
        """These only; they are some of those that are here."""
        before, self._symbols = self._symbols, kept
        self._store.kept.free += sum(len(one.data) + _SYMBOL for one in before)
        self._store.kept.free -= sum(len(one.data) + _SYMBOL for one in kept)

    def _judge(self, end: End) -> None:
        agrees = (end.chunks, end.size, end.crc) == (self.next, self._size, self._crc)
        self.whole, self.wrong = agrees, not agrees
        self.close()

    def close(self) -> None:
        """Forget what is held: it is over."""
        self._drop_shards()
        self._keep_symbols([])
        self._keep_pairs([])
        self._store.free += sum(len(chunk) + _ENTRY for chunk in self._ahead.values())
        self._store.kept.free += sum(len(chunk) + _ENTRY for chunk in self._recent.values())
        self._recent.clear()
        self._ahead.clear()

    def _drop_shards(self) -> None:
        self._store.free += sum(len(shard) + _ENTRY for shard in self._shards.values())
        self._shards.clear()
