"""What came and was not acknowledged yet: when to tell the other end, and what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from node.link import packet
from node.link.crypto import ReplayWindow
from node.link.departures import Stream
from node.link.packet import Ack, Block, Got

ACK_S = 0.02  # between two, at least
LATE_S = 0.1  # after what it is for, at most
WORTH = 400  # bytes that it should be for: it is a packet of 74 itself, and the way back may be narrow


class Acknowledgements:
    """Packets that came, and slots of which something came."""

    def __init__(self) -> None:
        self.window = ReplayWindow()
        self.due = math.inf  # when an acknowledgement must go
        self._last = -math.inf
        self._owed = 0  # bytes that came since
        self._largest_at = 0.0
        self._touched: dict[int, None] = {}  # slots, the longest waiting first

    def note(self, number: int, came: float) -> bool:
        """A packet came whose tag was right; True where none was newer."""
        newest = number > self.window.largest
        self.window.note(number)
        if newest:
            self._largest_at = came
        return newest

    def touch(self, slot: int) -> None:
        """Something came for this slot."""
        self._touched[slot] = None

    def answered_by(self, streams: Mapping[int, Stream]) -> bool:
        """Whether what came was a request whose reply is not said yet."""
        return any(streams[slot].sender.end is None for slot in self._touched)

    def ask(self, now: float, size: int, *, at_once: bool) -> None:
        """A packet of `size` bytes came that asks for an acknowledgement."""
        self._owed += size
        if at_once:
            self.due = now
            return
        wait = ACK_S if self._owed >= WORTH else LATE_S
        self.due = min(self.due, max(now, self._last + wait))

    def compose(self, streams: Mapping[int, Stream], room: int, now: float) -> tuple[list[Block], int]:
        """An ACK, and as many GOTs as fit into `room` bytes beside it, and their size; nothing where none is due."""
        if self.due == math.inf:
            return [], 0
        delay = max(0.0, now - self._largest_at)
        ack = Ack(max(0, self.window.largest), delay, self.window.recent(packet.BITMAP))
        blocks: list[Block] = [ack]
        size = packet.ACK_SIZE
        for slot in self._touched:
            got = streams[slot].receiver.got()
            more = len(packet.encode(got)) if got.ranges else packet.GOT_HEAD
            if size + more > room:
                break
            blocks.append(got)
            size += more
        return blocks, size

    def told(self, blocks: Sequence[Block], now: float) -> None:
        """These blocks leave; slots that found no room have their turn in the next packet."""
        told = [block.slot for block in blocks if isinstance(block, Got)]
        for slot in told:
            del self._touched[slot]
        self._last, self._owed = now, 0
        self.due = math.inf if not self._touched else now if told else now + ACK_S
