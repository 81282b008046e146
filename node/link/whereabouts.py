"""Where the other end is, what may go there, and how it shows that it is there.

Whoever has the key may come from a new address: the newest packet moves the link there. Until an 8-byte challenge has
come back from it, at most `AMPLIFICATION` times as many bytes go there as came from it, so that nobody gains by sending
somebody else's datagrams from a victim's address. A client whose own address changes needs to do nothing but send. An
answer to a challenge counts as lost until its packet, or a later one, is acknowledged: a node that never saw it may
have no room to ask again.
"""

from __future__ import annotations

from collections.abc import Callable

from node.link import packet
from node.link.crypto import TAG_SIZE
from node.link.events import Address
from node.link.packet import Challenge, Response

AMPLIFICATION = 3
CHALLENGE_SIZE = 9  # bytes of its block

_BODY = packet.MAX_DATAGRAM - packet.HEAD.size - TAG_SIZE
_PADDED = (550, 200, 200)  # bytes of a client's first bodies, at least: not much, for a narrow path's sake


class Whereabouts:
    """The other end's address. A client takes its node's for proven: it came over HTTPS."""

    __slots__ = (
        "_bytes_in",
        "_bytes_out",
        "_challenge",
        "_client",
        "_entropy",
        "_proof",
        "_response",
        "address",
        "proven",
    )

    def __init__(self, address: Address, *, client: bool, entropy: Callable[[int], bytes]) -> None:
        self.address = address
        self.proven = client
        self._client = client
        self._entropy = entropy
        self._challenge = self._response = b""
        self._proof = -1  # the packet that answered a challenge, until it or a later one is acknowledged
        self._bytes_in = self._bytes_out = 0  # from and to an address that is not proven

    def moved(self, address: Address) -> None:
        """The newest packet came from another address."""
        self.address = address
        if not self._client:
            self.proven = False
            self._challenge = self._entropy(8)
            self._bytes_in = self._bytes_out = 0

    def came(self, size: int, address: Address) -> None:
        """An authentic datagram came."""
        if address == self.address:
            self._bytes_in += size

    def left(self, size: int) -> None:
        """A datagram went there."""
        self._bytes_out += size

    def room(self) -> int:
        """Bytes that the next body may have."""
        if self.proven:
            return _BODY
        return min(_BODY, AMPLIFICATION * self._bytes_in - self._bytes_out - packet.HEAD.size - TAG_SIZE)

    def padded(self, body: bytes, number: int, *, heard: bool) -> bytes:
        """A client's first bodies, until it has heard of its node, are long enough for a node to answer with a few."""
        first = self._client and not heard and number < len(_PADDED)
        return body.ljust(_PADDED[number], b"\x00") if first else body

    def asked(self, block: Challenge) -> None:
        """The other end wants to know whether we are here."""
        self._response = block.token

    def answered(self, block: Response) -> None:
        """It says that it is there."""
        self.proven = self.proven or block.token == self._challenge

    @property
    def owes(self) -> bool:
        """Whether a challenge is to be answered."""
        return bool(self._response)

    @property
    def unsure(self) -> bool:
        """Whether the other end may not know yet that we are here."""
        return self._proof >= 0

    def answer(self) -> list[Response]:
        """What the next packet says first."""
        return [Response(self._response)] if self._response else []

    def question(self) -> list[Challenge]:
        """What every packet to a new address says."""
        return [] if self.proven or not self._challenge else [Challenge(self._challenge)]

    def said(self, number: int) -> None:
        """The answer left with this packet."""
        self._proof, self._response = number, b""

    def acknowledged(self, largest: int) -> None:
        """The other end has all that matters of the packets up to this one."""
        if largest >= self._proof:
            self._proof = -1
