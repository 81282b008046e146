"""Who is at the other end: TLS 1.3 on both sides, the fleet's authority pinned, the certificate's name checked.

The authority in a node's enrolment is the only root; hosts' names and the system's roots count for nothing. What the
library does not check is checked when a handshake has succeeded, before a byte of it is used: that the certificate
names a node of this fleet, that this node is not denied, and, at whoever calls, that it is the one that was meant.
There is no resumption: every connection shows its certificate.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import serialization

from node.errors import EnrolmentError
from node.mesh.identity import Identity, named

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0  # for each reason; anybody on the network can cause these lines
_WORDS = {
    2: "its certificate is of another fleet",
    7: "its certificate is of another fleet",
    9: "its certificate is not valid yet; is a clock wrong?",
    10: "its certificate is over; issue a new one",
    18: "its certificate is signed by itself",
    19: "its certificate is of another fleet",
    20: "its certificate is of another fleet",
    21: "its certificate is of another fleet",
    26: "its certificate is for something else",
}


class Refusals:
    """Counts connections that were refused, by reason, and tells the log without being flooded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[str, int] = {}
        self._clock = clock
        self._told: dict[str, float] = {}

    def note(self, reason: str, side: str) -> None:
        """One more; `reason` is one of few."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        now = self._clock()
        if now - self._told.get(reason, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._told[reason] = now
            log.warning("not a neighbour", extra={"reason": reason, "side": side, "refused": self.counts[reason]})


class _Checked(ssl.SSLObject):
    """A connection whose handshake succeeds only with a neighbour."""

    def do_handshake(self) -> None:
        context = self.context
        assert isinstance(context, MeshContext), "it is made by no other"
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            context.refuse(_WORDS.get(error.verify_code, "its certificate cannot be trusted"))
            raise
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            if "ALERT" not in (error.reason or ""):  # an alert is the other side's refusal, which it tells itself
                context.refuse("it does not speak TLS 1.3 with a certificate")
            raise
        context.admit(self.getpeercert())


class MeshContext(ssl.SSLContext):
    """The settings of one side. `expected` is who must be at the other end; "" takes any node of the fleet."""

    sslobject_class = _Checked
    identity: Identity
    expected: str
    refusals: Refusals
    seen: str  # the node of the latest handshake

    def admit(self, certificate: Any) -> None:
        """Check what a verified certificate says; raises SSLCertVerificationError."""
        try:
            self.seen = self.named(certificate)
        except EnrolmentError as error:
            self.refuse(error.message)
            raise ssl.SSLCertVerificationError(error.message) from error
        if self.expected and self.seen != self.expected:
            self.refuse("it is another node than was announced")
            raise ssl.SSLCertVerificationError("this is another node than was announced")

    def named(self, certificate: Any) -> str:
        """The node that a verified certificate is for; raises EnrolmentError for one that is none of ours, or denied.

        Also for connections that have been open for long: their certificate may be over by now.
        """
        names = (certificate or {}).get("subjectAltName", ())
        fabric, node_id = named([value for kind, value in names if kind == "URI"])
        if fabric != self.identity.fabric:
            raise EnrolmentError(_WORDS[20])
        if node_id in self.identity.denied.ids:
            raise EnrolmentError("it is denied")
        if ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time():
            raise EnrolmentError(_WORDS[10])
        return node_id

    def refuse(self, reason: str) -> None:
        """Count and log it."""
        self.refusals.note(reason, "server" if self.protocol == ssl.PROTOCOL_TLS_SERVER else "client")


def server_context(identity: Identity, refusals: Refusals) -> MeshContext:
    """For connections of neighbours to this node; raises EnrolmentError."""
    return _context(ssl.PROTOCOL_TLS_SERVER, identity, refusals, "")


def client_context(identity: Identity, refusals: Refusals, expected: str = "") -> MeshContext:
    """For connections to one neighbour; raises EnrolmentError."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity, refusals, expected)


def renew(context: MeshContext, identity: Identity) -> None:
    """From now on show this certificate, and deny whom this enrolment denies; raises EnrolmentError."""
    try:
        context.load_cert_chain(identity.certificate, identity.key)
    except (OSError, ssl.SSLError) as error:
        raise EnrolmentError(f"The key or certificate of this node cannot be used: {error}.") from error
    context.identity = identity


def _context(protocol: int, identity: Identity, refusals: Refusals, expected: str) -> MeshContext:
    context = MeshContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes have no host names; `named` checks who it is
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    pem = identity.authority.public_bytes(serialization.Encoding.PEM).decode()
    context.load_verify_locations(cadata=pem)
    context.expected, context.refusals, context.seen = expected, refusals, ""
    renew(context, identity)
    return context
