"""What protects a datagram: ChaCha20-Poly1305, a key for each direction, and a window against replays.

A link's secret (32 random bytes) comes over HTTPS from `POST /v1/link`. Each direction has a key and an IV from
HKDF-SHA256 (RFC 5869) with the connection's id as salt; the nonce is the IV exclusive-or the packet number, which never
repeats (RFC 8446, 5.3). The AEAD's tag takes the place of a CRC.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from node.link.packet import VERSION

SECRET_SIZE = 32
TAG_SIZE = 16
MAX_PACKETS = 2**32  # a link must be opened anew before its numbers run out
_KEY, _IV = 32, 12
_LABELS = {True: b"outpost link %d from client" % VERSION, False: b"outpost link %d from node" % VERSION}


class Sealer:
    """Seals or opens the datagrams of one direction."""

    def __init__(self, secret: bytes, connection: int, *, from_client: bool) -> None:
        if len(secret) != SECRET_SIZE:
            raise ValueError(f"a secret of {len(secret)} bytes")
        salt = connection.to_bytes(4, "big")
        derived = HKDF(SHA256(), _KEY + _IV, salt, _LABELS[from_client]).derive(secret)
        self._cipher = ChaCha20Poly1305(derived[:_KEY])
        self._iv = int.from_bytes(derived[_KEY:], "big")

    def seal(self, number: int, head: bytes, body: bytes) -> bytes:
        """The body, encrypted, with its tag; `head` is authenticated with it."""
        if not 0 <= number < MAX_PACKETS:
            raise ValueError("the packet numbers of this link have run out")
        return self._cipher.encrypt((self._iv ^ number).to_bytes(_IV, "big"), body, head)

    def open(self, number: int, head: bytes, sealed: bytes) -> bytes | None:
        """The body; None where the tag is wrong."""
        if len(sealed) < TAG_SIZE:
            return None
        try:
            return self._cipher.decrypt((self._iv ^ number).to_bytes(_IV, "big"), sealed, head)
        except InvalidTag:
            return None


class ReplayWindow:
    """Which packet numbers were seen, of the newest 1024; older ones count as seen (RFC 4303, 3.4.3).

    Only numbers whose tag was right may be noted: else anybody could shift the window.
    """

    SIZE = 1024

    def __init__(self) -> None:
        self.largest = -1
        self._seen = 0  # bit i is number `largest - i`
        self._mask = (1 << self.SIZE) - 1

    def fresh(self, number: int) -> bool:
        """Whether this number was not seen yet."""
        back = self.largest - number
        return back < 0 or (back < self.SIZE and not self._seen >> back & 1)

    def note(self, number: int) -> None:
        """This number was seen."""
        if number > self.largest:
            # A leap by four thousand millions must not make a number of so many bits.
            self._seen = (self._seen << min(number - self.largest, self.SIZE) | 1) & self._mask
            self.largest = number
        else:
            self._seen |= 1 << (self.largest - number)

    def recent(self, count: int) -> int:
        """Bit i tells whether `largest - 1 - i` was seen, for the `count` numbers before the largest."""
        return self._seen >> 1 & ((1 << count) - 1)
