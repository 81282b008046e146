"""The sending half of one reply: what the next packet carries of it.

A packet carries, as far as its budget goes,

1. everything that is not acknowledged, oldest first (L1): on a path with losses each packet repairs the ones before it;
2. where that is too much: what is new and what is overdue, and repair symbols over the rest of the window (L2);
3. on a path that is full already (lean): what is known to be lost, what is new, what is overdue, and the parity of what
   the two packets before brought (`pairs`): a lost packet is repaired by the next, two in a row by the two after them,
   for the fewest bytes. Where chunks are too long for that, what the packet before brought goes once more instead, and
   what the one before that brought for a third time, where all of it is shorter than a packet's headers;
4. a backlog that no packet holds goes out as a flight (L3, `flight`), and has its time to arrive before the others
   touch it again.

Chunks that were acknowledged out of order are not repeated, but kept until all before them have come: symbols cover
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from node.link import flight, packet, pairs
from node.link.fec import LENGTH, MAX_SHARD, WINDOW, repair_symbol, shard_size
from node.link.frame import crc32
from node.link.packet import (
    DATA_HEAD,
    LONGEST_WORD,
    MOST_PAIRED,
    REPAIR_HEAD,
    Block,
    Data,
    End,
    Flight,
    Got,
    Repair,
    data_size,
)

SPAN = 0x4000  # chunks under way: half of what 16 bits tell apart is 0x8000, and a delayed packet may be older
MAX_CHUNK = 1000  # bytes; a longer text must be split, at characters
_COPY = 4  # chunks that a copy repeats
_CHEAP = 32  # bytes of a lean packet's chunks
_END_SIZE = 15


class Sender:
    """One slot's outgoing chunks, numbered from `first`."""

    def __init__(self, slot: int, first: int = 0, crc: int = 0, size: int = 0) -> None:
        self.slot = slot
        self.first_unacked = self.next = self._fresh = first
        self.end: End | None = None
        self.whole = False
        self.wrong = False
        self.end_unsent = True
        self.repeated: set[int] = set()  # unacknowledged chunks that were sent more than once
        self.backlog = 0  # bytes that may be sent and never were
        self.unacknowledged = 0  # bytes, those never sent included
        self._size, self._crc = size, crc
        self._chunks: dict[int, bytes] = {}  # from `first_unacked` on
        self._held: dict[int, bytes] = {}  # what is SPAN chunks after `first_unacked`, or more
        self._come: set[int] = set()  # acknowledged, though one before is not
        self._sent: dict[int, float] = {}  # when last
        self._late: set[int] = set()  # reported missing after they must have come
        self._aloft: tuple[range, float] = (range(0), 0.0)  # in a flight that may land until then
        self._previous: list[int] = []  # what the last packet brought for the first time,
        self._older: list[int] = []  # and the one before,
        self._mended: list[int] = []  # and what the last packet brought because it was lost
        self._symbol = 0
        self._flights = 0

    @property
    def size(self) -> int:
        """Bytes of the text so far."""
        return self._size

    @property
    def waiting(self) -> bool:
        """Whether something is not acknowledged."""
        return (len(self._come) < len(self._chunks) or self.end is not None) and not (self.whole or self.wrong)

    @property
    def done(self) -> bool:
        """Whether the other end has the whole text, or knows that it cannot."""
        return self.whole or self.wrong

    @property
    def fresh(self) -> bool:
        """Whether something was never sent."""
        return self._fresh < self.next

    @property
    def late(self) -> bool:
        """Whether something is known to be lost."""
        return bool(self._late)

    def push(self, chunk: bytes) -> int:
        """Add a chunk of at most MAX_CHUNK bytes; gives its number."""
        if self.end is not None or len(chunk) > MAX_CHUNK:
            raise ValueError("a chunk after the end" if self.end else f"a chunk of {len(chunk)} bytes")
        number = self.next + len(self._held)
        self._held[number] = chunk
        self.unacknowledged += len(chunk)
        self._size += len(chunk)
        self._crc = crc32(chunk, self._crc)
        self._admit()
        return number

    def _admit(self) -> None:
        """Let follow what is near enough to what has come."""
        while self._held and self.next < self.first_unacked + SPAN:
            chunk = self._chunks[self.next] = self._held.pop(self.next)
            self.backlog += len(chunk)
            self.next += 1

    def finish(self, meta: bytes = b"") -> None:
        """No more chunks; `meta` of at most 255 bytes goes with the end."""
        if len(meta) > packet.MAX_META:
            raise ValueError(f"metadata of {len(meta)} bytes")
        self.end = End(self.slot, self.next + len(self._held), self._size, self._crc, meta)

    def got(self, block: Got, as_of: float) -> bool:
        """Learn what has come; `as_of` is when the packet was sent that the other end answers. True on progress."""
        if block.next > self._fresh or self.done:
            return False  # nobody can have what was never sent
        before = (self.first_unacked, len(self._come))
        while self.first_unacked < block.next:
            self._drop(self.first_unacked)
            self.first_unacked += 1
        at = block.next
        for missing, come in block.ranges:
            for number in range(max(at, self.first_unacked), min(at + missing, self._fresh)):
                if self._sent.get(number, as_of) < as_of and number not in self._come:
                    self._late.add(number)
            at += missing
            self._note_come(range(max(at, self.first_unacked), min(at + come, self._fresh)))
            at += come
        self._admit()
        self.whole = self.end is not None and block.whole and self.first_unacked == self.next
        self.wrong = block.wrong
        if self.wrong:
            self.unacknowledged -= sum(map(len, self._held.values()))
            self._held.clear()
            while self.first_unacked < self.next:
                self._drop(self.first_unacked)
                self.first_unacked += 1
        return before != (self.first_unacked, len(self._come)) or self.done

    def _note_come(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._come.add(number)
            self._late.discard(number)

    def _drop(self, number: int) -> None:
        if number >= self._fresh:
            self._fresh = number + 1
            self.backlog -= len(self._chunks[number])
        self.unacknowledged -= len(self._chunks.pop(number))
        self._sent.pop(number, None)
        self.repeated.discard(number)
        self._come.discard(number)
        self._late.discard(number)

    def compose(
        self, budget: int, now: float, overdue: float, symbols: int, most: int = 0, *, alone: bool = True
    ) -> list[Block]:
        """Blocks of at most `budget` bytes; chunks sent over `overdue` seconds ago are sent again before others.

        `symbols` is how many repair symbols cover what finds no room; with none, the packet is lean. A chunk that is
        larger than the budget goes alone, in at most `most` bytes. No other reply's blocks follow where it is `alone`.
        """
        end = self._end_within(max(budget, most))
        room = budget - sum(_END_SIZE + len(one.meta) for one in end)
        aloft = now < self._aloft[1]
        numbers = [n for n in self._chunks if n not in self._come and not (aloft and self._flies(n, now))]
        fresh, window, parity = self._fresh, list[int](), b""
        if not symbols or (not self._surely_fits(room) and _size(numbers, self._chunks) > room):
            old, new = [n for n in numbers if n < fresh], [n for n in numbers if n >= fresh]
            wanted = [
                *(n for n in old if n in self._late or n in self._previous or self._sent[n] < now - overdue),
                *new,
            ]
            if not symbols:
                wanted, parity = self._lean(old, new, now - overdue, room, alone)
                room -= len(parity) + DATA_HEAD * (parity != b"" and fresh - 1 in wanted)  # two blocks, not one
            for window in (self._window(old, symbols, room), []):
                numbers = _fitting(wanted, self._chunks, room - _repair_size(window, self._chunks, symbols))
                if numbers or not wanted:
                    break
            if not numbers and (numbers := _fitting(wanted[:1], self._chunks, most)):
                end = []
        blocks = self._blocks(numbers, fresh, parity)
        self._mended = [number for number in numbers if number in self._late]
        self._mark(numbers, now)
        self._previous, self._older = [number for number in numbers if number >= fresh], self._previous
        if window and (rest := [number for number in window if number not in numbers]):
            blocks.append(self._repair(range(rest[0], rest[-1] + 1), symbols))
        return blocks if self.fresh else [*end, *blocks] if parity else [*blocks, *end]

    def _lean(
        self, old: Sequence[int], new: Sequence[int], before: float, room: int, alone: bool
    ) -> tuple[list[int], bytes]:
        """What a lean packet carries, what matters most first, and what repairs the two before it."""
        lost = [n for n in old if n in self._late]
        again = [n for n in old if n not in self._late and (n in self._mended or self._sent[n] < before)]
        parity = self._pair(new) if alone else b""
        if parity and _size(lost, self._chunks) + _size(new, self._chunks) + len(parity) <= room:
            return [*lost, *new, *again], parity  # news before copies, but not before what all news wait for
        again = sorted({*again, *(n for n in old if n in self._previous and n not in self._late)})
        third = [n for n in old if n in self._older and n not in again and n not in lost]
        if _size(sorted([*third, *again, *lost, *new]), self._chunks) > _CHEAP + DATA_HEAD:
            third = []
        return [*lost, *new, *again, *third], b""

    def _pair(self, new: Sequence[int]) -> bytes:
        """The parity of what the last two packets brought, where it can be said together with what is new."""
        older, newer = self._older, self._previous
        rows = [*older, *newer, *new]
        if not (older and newer and new) or max(map(len, (older, newer, new))) > MOST_PAIRED:
            return b""
        if rows[0] < self.first_unacked or rows != list(range(rows[0], rows[0] + len(rows))):
            return b""
        if max(len(self._chunks[n]) for n in rows) > LONGEST_WORD:
            return b""
        return pairs.parity([self._chunks[n] for n in older], [self._chunks[n] for n in newer])

    def _blocks(self, numbers: Sequence[int], fresh: int, parity: bytes) -> list[Block]:
        """DATA blocks of these chunks; a `parity` goes with those that are new."""
        if not parity or not numbers or numbers[-1] < fresh:
            return list(_runs(self.slot, numbers, self._chunks))
        new = [self._chunks[n] for n in numbers if n >= fresh]
        paired = Data(self.slot, fresh, new, len(self._older), len(self._previous), parity)
        return [*_runs(self.slot, [n for n in numbers if n < fresh], self._chunks), paired]

    def _surely_fits(self, room: int) -> bool:
        """Whether all that is not acknowledged fits, however it is cut into blocks: quickly told, and mostly so."""
        return self.unacknowledged + len(self._chunks) * (2 + DATA_HEAD) <= room

    def next_alone(self, now: float, *, anew: bool) -> tuple[int, bytes] | None:
        """The one chunk to send next: what is lost, else what is new, else with `anew` the oldest again."""
        oldest = next((n for n in self._chunks if n not in self._come), None)
        number = min(self._late) if self._late else self._fresh if self.fresh else oldest if anew else None
        if number is None:
            return None
        if number < self._fresh:
            self.repeated.add(number)
        self._mark([number], now)
        return number, self._chunks[number]

    def sent_at(self, number: int) -> float | None:
        """When a chunk that is not acknowledged was sent last."""
        return self._sent.get(number)

    def copy(self, budget: int, *, bursts: bool = True) -> list[Block]:
        """What was new in the last packet, and the chunk before, and the end: it follows a few milliseconds later.

        Where losses come in `bursts`, the last few chunks: the packets that brought them are lost, too.
        """
        last = (
            range(self._fresh - _COPY, self._fresh) if bursts else {*self._mended, *self._older[-1:], *self._previous}
        )
        numbers = [number for number in sorted(last) if number in self._chunks and number not in self._come]
        end = self._end_within(budget) if not self.fresh else []
        room = budget - sum(_END_SIZE + len(one.meta) for one in end)
        while numbers and _size(numbers, self._chunks) > room:
            numbers.pop(0)
        return [*_runs(self.slot, numbers, self._chunks), *end]

    def _end_within(self, budget: int) -> list[End]:
        return (
            [self.end] if self.end is not None and not self._held and _END_SIZE + len(self.end.meta) <= budget else []
        )

    def launch(self, loss: float, now: float) -> list[Flight]:
        """A flight of what was never sent; `lands` says then how long it may take."""
        rows: list[bytes] = []
        row: list[bytes] = []
        first = begin = self._fresh
        size = DATA_HEAD
        at = first
        for at in range(first, self.next + 1):
            chunk = self._chunks.get(at)
            full = chunk is not None and (size + data_size(chunk) > flight.SHARD or len(row) == 255)
            if row and (chunk is None or full):
                rows.append(packet.encode(Data(self.slot, begin, row)))
                row, begin, size = [], at, DATA_HEAD
                if len(rows) == flight.MAX_FLIGHT:
                    break
            if chunk is not None:
                row.append(chunk)
                size += data_size(chunk)
        self._mark(range(first, at), now)
        self._aloft = (range(first, at), math.inf)
        self._flights = (self._flights + 1) % 256
        parity = flight.parity_for(len(rows), loss)
        pieces = flight.shards(rows, parity)
        return [Flight(self.slot, self._flights, len(rows), parity, i, shard) for i, shard in enumerate(pieces)]

    def lands(self, when: float) -> None:
        """Until then the last flight's chunks are on their way."""
        self._aloft = (self._aloft[0], when)

    def _flies(self, number: int, now: float) -> bool:
        numbers, until = self._aloft
        return now < until and number in numbers and number not in self._late

    def _mark(self, numbers: Iterable[int], now: float) -> None:
        for number in numbers:
            self._sent[number] = now
            self._late.discard(number)
            if number >= self._fresh:
                self._fresh = number + 1
                self.backlog -= len(self._chunks[number])

    def _window(self, old: Sequence[int], symbols: int, room: int) -> list[int]:
        """The newest of `old` that symbols can cover within half of the room."""
        window = [number for number in old if number > self._fresh - 1 - WINDOW] if symbols else []
        small = all(len(self._chunks[n]) + LENGTH <= MAX_SHARD for n in self._chunks if n in range(*_span(window)))
        return window if small and _repair_size(window, self._chunks, symbols) <= room // 2 else []

    def _repair(self, window: range, symbols: int) -> Repair:
        chunks = [self._chunks[number] for number in window]
        first = self._symbol
        self._symbol = (first + symbols) % 128
        made = [repair_symbol(chunks, window.start, (first + i) % 128) for i in range(symbols)]
        return Repair(self.slot, window.start, len(window), first, made)


def _span(numbers: Sequence[int]) -> tuple[int, int]:
    return (numbers[0], numbers[-1] + 1) if numbers else (0, 0)


def _size(numbers: Sequence[int], chunks: dict[int, bytes]) -> int:
    """Bytes of the DATA blocks that carry these chunks."""
    runs = sum(i == 0 or numbers[i - 1] != number - 1 for i, number in enumerate(numbers))
    return sum(data_size(chunks[number]) for number in numbers) + DATA_HEAD * (runs + len(numbers) // 255)


def _repair_size(window: Sequence[int], chunks: dict[int, bytes], symbols: int) -> int:
    if not window:
        return 0
    return REPAIR_HEAD + symbols * shard_size(chunks[number] for number in range(*_span(window)))


def _fitting(numbers: Iterable[int], chunks: dict[int, bytes], room: int) -> list[int]:
    """The first of `numbers` that fit, in order."""
    chosen: list[int] = []
    for number in numbers:
        if _size(sorted([*chosen, number]), chunks) > room:
            break
        chosen.append(number)
    return sorted(chosen)


def _runs(slot: int, numbers: Sequence[int], chunks: dict[int, bytes]) -> Iterable[Data]:
    """DATA blocks of consecutive chunks."""
    run: list[bytes] = []
    for i, number in enumerate(numbers):
        run.append(chunks[number])
        if len(run) == 255 or i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            yield Data(slot, number - len(run) + 1, run)
            run = []
