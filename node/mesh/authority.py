"""A fleet's authority: one key, kept offline, which vouches for nodes and takes that back.

    authority.key   private, readable by its owner only; whoever has it can make nodes of this fleet
    authority.crt   what nodes pin
    issued.jsonl    a line a certificate: name, id, serial, end
    denied.json     whom it denies, signed (see `mesh.denial`)

Certificates are short-lived on purpose: a node that nobody vouches for any more drops out by itself.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from node.errors import EnrolmentError
from node.mesh import denial
from node.mesh.identity import NAME, fabric_of, node_id_of, public_key, read_bounded, urn, write_private

_KEY, _CERTIFICATE, _ISSUED, _DENIED = "authority.key", "authority.crt", "issued.jsonl", "denied.json"
_OWN_YEARS = 20
_EARLY = datetime.timedelta(hours=1)  # a node's clock may be behind
_MAX_LEDGER = 16 << 20


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate that was given out."""

    name: str
    id: str
    serial: str
    ends: str


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority whose key is at hand."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def fabric(self) -> str:
        """The fleet's name."""
        return fabric_of(self.certificate)

    def issue(
        self, name: str, request: bytes | None, lasts: datetime.timedelta, now: datetime.datetime
    ) -> tuple[bytes, Issued]:
        """A bundle for `outpost fleet enrol`; without a node's request it holds a new private key, too."""
        if not NAME.fullmatch(name):
            raise EnrolmentError(f"`{name}` cannot be a node's name: letters, digits, dots and dashes, at most 63.")
        own_key = ec.generate_private_key(ec.SECP256R1()) if request is None else None
        key = own_key.public_key() if own_key else _requested(request or b"")
        node_id = node_id_of(key)
        if node_id in self.denied().ids:
            raise EnrolmentError(f"{node_id} is denied.", hint="Its key is not to be trusted; let it make a new one.")
        certificate = self._sign(name, node_id, key, now, now + lasts)
        issued = Issued(
            name=name, id=node_id, serial=f"{certificate.serial_number:x}", ends=f"{now + lasts:%Y-%m-%dT%H:%M:%SZ}"
        )
        with (self.folder / _ISSUED).open("ab") as ledger:
            ledger.write(msgspec.json.encode(issued) + b"\n")
        blocks = [_pem(certificate), _pem(self.certificate)]
        return b"".join([*blocks, _pem_of_key(own_key)] if own_key else blocks), issued

    def issued(self) -> list[Issued]:
        """Every certificate given out, the oldest first; raises EnrolmentError."""
        path = self.folder / _ISSUED
        if not path.exists():
            return []
        if path.stat().st_size > _MAX_LEDGER:
            raise EnrolmentError(f"{path} is too large.", hint="Move lines of certificates that are over elsewhere.")
        try:
            return [msgspec.json.decode(line, type=Issued) for line in path.read_bytes().splitlines()]
        except msgspec.MsgspecError as error:
            raise EnrolmentError(f"{path} has a line that cannot be read: {error}.") from error

    def denied(self) -> denial.Denied:
        """Whom it denies now."""
        path = self.folder / _DENIED
        if not path.exists():
            return denial.Denied(fabric=self.fabric)
        return denial.read(read_bounded(path), public_key(self.certificate), self.fabric)

    def deny(self, node: str, *, again_allowed: bool = False) -> tuple[denial.Denied, bytes]:
        """Deny every node with this id or name (or allow it again), and sign the new list; raises EnrolmentError."""
        ids = {issued.id for issued in self.issued() if node in (issued.id, issued.name)}
        if not ids:
            raise EnrolmentError(f"No certificate was ever issued to `{node}`.", hint="Name a node or its id.")
        before = self.denied()
        kept = set(before.ids) - ids if again_allowed else set(before.ids) | ids
        denied = denial.Denied(fabric=self.fabric, number=before.number + 1, ids=tuple(sorted(kept)))
        text = denial.write(denied, self.key)
        write_private(self.folder / _DENIED, text)
        return denied, text

    def _sign(
        self,
        name: str,
        node_id: str,
        key: ec.EllipticCurvePublicKey,
        begins: datetime.datetime,
        ends: datetime.datetime,
    ) -> x509.Certificate:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        uri = x509.UniformResourceIdentifier(urn(self.fabric, node_id))
        builder = _builder(_named(name), self.certificate.subject, key, begins - _EARLY, ends)
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key(self.certificate)), critical=False
            )
        )
        return builder.sign(self.key, hashes.SHA256())


def create(folder: Path, name: str, now: datetime.datetime) -> Authority:
    """A new authority in an empty folder; raises EnrolmentError where there is one already."""
    if (folder / _KEY).exists():
        raise EnrolmentError(f"{folder} holds an authority already; its nodes would not know a new one.")
    if not NAME.fullmatch(name):
        raise EnrolmentError(f"`{name}` cannot be a fleet's name: letters, digits, dots and dashes, at most 63.")
    key = ec.generate_private_key(ec.SECP256R1())
    ends = now + datetime.timedelta(days=365 * _OWN_YEARS)
    builder = _builder(_named(name), _named(name), key.public_key(), now - _EARLY, ends)
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    write_private(folder / _KEY, _pem_of_key(key))
    write_private(folder / _CERTIFICATE, _pem(certificate))
    return Authority(folder, key, certificate)


def load(folder: Path) -> Authority:
    """The authority in `folder`; raises EnrolmentError."""
    if not (folder / _KEY).exists():
        raise EnrolmentError(f"There is no authority in {folder}.", hint="Make one with `outpost fleet ca init`.")
    try:
        key = serialization.load_pem_private_key(read_bounded(folder / _KEY), None)
        certificate = x509.load_pem_x509_certificate(read_bounded(folder / _CERTIFICATE))
    except (ValueError, TypeError) as error:
        raise EnrolmentError(f"The authority in {folder} cannot be read.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != public_key(certificate):
        raise EnrolmentError(f"The key and the certificate in {folder} do not belong together.")
    return Authority(folder, key, certificate)


def _requested(request: bytes) -> ec.EllipticCurvePublicKey:
    """The key that a request asks a certificate for; all else in it is ignored."""
    try:
        parsed = x509.load_pem_x509_csr(request)
        proved = parsed.is_signature_valid
    except (ValueError, TypeError) as error:
        raise EnrolmentError("This is no request of `outpost fleet enrol --request`.") from error
    if not proved:
        raise EnrolmentError("This request was not signed with the key that it names.")
    return public_key(parsed)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(**used: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    every: dict[str, Any] = dict.fromkeys(
        (*names, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False
    )
    return x509.KeyUsage(**(every | used))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
