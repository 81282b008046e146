"""Two packets' chunks in the bytes of one: what repairs a full path's losses for the fewest bytes.

A packet carries, beside what is new, the exclusive-or of what the two packets before it brought (PAIRED, in `packet`).
Where one of those was lost, the other one gives it: as soon as a copy of it would have, for no more bytes. Where both
were lost, the next packet's gives the newer one, and that one the older: a copy would have been lost with it, and a
round trip with that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.errors import LinkError
from node.link.packet import LONGEST_WORD, Data, row, words_in


def parity(older: Sequence[bytes], newer: Sequence[bytes]) -> bytes:
    """The exclusive-or of two rows of words."""
    return _xor(row(older), row(newer))


@dataclass(frozen=True, slots=True)
class Pair:
    """What a PAIRED block says of the chunks before its own; their numbers are whole."""

    older: range
    newer: range
    parity: bytes

    def solve(self, known: Mapping[int, bytes]) -> dict[int, bytes]:
        """What follows for one half from the other, which must be words; raises LinkError where they contradict it."""
        for here, there in ((self.older, self.newer), (self.newer, self.older)):
            words = [known[number] for number in here if number in known]
            if len(words) == len(here) and any(number not in known for number in there):
                if max(map(len, words)) > LONGEST_WORD:
                    raise LinkError("A pair of what is too long for it.")
                others = words_in(_xor(self.parity, row(words)), len(there))
                return {number: word for number, word in zip(there, others, strict=True) if number not in known}
        return {}


def pair_in(block: Data, first: int) -> Pair:
    """The pair in a block whose first chunk has this number."""
    middle = first - block.newer
    return Pair(range(middle - block.older, middle), range(middle, first), block.parity)


def solve(pairs: Sequence[Pair], known: Mapping[int, bytes]) -> dict[int, bytes]:
    """What follows from all of them."""
    found: dict[int, bytes] = {}
    while True:
        more: dict[int, bytes] = {}
        for pair in pairs:
            more |= pair.solve({**known, **found, **more})
        if not more:
            return found
        found |= more


def _xor(one: bytes, other: bytes) -> bytes:
    size = max(len(one), len(other))
    return (int.from_bytes(one.ljust(size, b"\x00")) ^ int.from_bytes(other.ljust(size, b"\x00"))).to_bytes(size)
