"""Whom a fleet's authority denies: a list that it signed, so that it may come from anybody.

A file has two lines: the list as JSON, and the signature of that line (ECDSA with SHA-256) in base64. A list with a
higher number replaces one with a lower, never the other way round.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from node.errors import EnrolmentError

MAX_BYTES = 64 << 10
_PURPOSE = b"outpost denies\n"  # a signature for one purpose is none for another
_ECDSA = ec.ECDSA(hashes.SHA256())

Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]


class Denied(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Node ids that are refused, whatever their certificates say."""

    fabric: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{16})?\Z")] = ""
    number: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    ids: Annotated[tuple[Id, ...], msgspec.Meta(max_length=2048)] = ()


NOBODY = Denied()


def write(denied: Denied, key: ec.EllipticCurvePrivateKey) -> bytes:
    """The signed list, as `read` reads it."""
    line = msgspec.json.encode(denied)
    return line + b"\n" + base64.b64encode(key.sign(_PURPOSE + line, _ECDSA)) + b"\n"


def read(text: bytes, key: ec.EllipticCurvePublicKey, fabric: str) -> Denied:
    """The list, once its signature is checked; raises EnrolmentError."""
    line, _, signature = text.partition(b"\n")
    if len(text) > MAX_BYTES:
        raise EnrolmentError("This list of denied nodes is too large.")
    try:
        key.verify(base64.b64decode(signature.strip(), validate=True), _PURPOSE + line, _ECDSA)
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise EnrolmentError("This list of denied nodes was not signed by the fleet's authority.") from error
    try:
        denied = msgspec.json.decode(line, type=Denied)
    except msgspec.MsgspecError as error:
        raise EnrolmentError(f"This list of denied nodes is malformed: {error}.") from error
    if denied.fabric != fabric:
        raise EnrolmentError("This list of denied nodes is another fleet's.")
    return denied
