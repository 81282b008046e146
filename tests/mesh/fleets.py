"""A fleet for tests: an authority, and nodes that it vouches for, each in a folder."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from node.mesh import authority, identity
from node.mesh.authority import Authority
from node.mesh.identity import Identity

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
MONTH = datetime.timedelta(days=30)


def make_authority(folder: Path, name: str = "test") -> Authority:
    """A fresh authority whose certificate is valid in real time, too."""
    return authority.create(folder, name, min(NOW, datetime.datetime.now(datetime.UTC)))


def enrolled(
    maker: Authority, folder: Path, name: str, now: datetime.datetime | None = None, lasts: datetime.timedelta = MONTH
) -> Identity:
    """A node of this fleet, by the way on which its key never leaves it."""
    now = now or datetime.datetime.now(datetime.UTC)
    bundle, _ = maker.issue(name, identity.make_request(folder), lasts, now)
    return identity.enrol(folder, bundle, now)


def self_signed(like: Identity, folder: Path) -> Identity:
    """One that names the same fleet and node, but vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "liar")])
    uri = x509.UniformResourceIdentifier(identity.urn(like.fabric, like.id))
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(like.begins).not_valid_after(like.ends)
    builder = builder.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    identity.write_private(folder / "node.key", pem)
    identity.write_private(folder / "node.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return dataclasses.replace(like, key=folder / "node.key", certificate=folder / "node.crt")


class Fleet:
    """An authority and folders for its nodes; and one of each kind that is none of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = make_authority(folder / "authority")

    def node(self, name: str) -> Identity:
        """A node in good order."""
        return enrolled(self.authority, self.folder / name, name)

    def wrong(self, kind: str) -> Identity:
        """An expired, future, foreign, self-signed or denied one, which believes in this fleet itself."""
        now, folder = datetime.datetime.now(datetime.UTC), self.folder / kind
        if kind == "expired":
            return enrolled(self.authority, folder, kind, now - MONTH, datetime.timedelta(days=1))
        if kind == "future":
            return enrolled(self.authority, folder, kind, now + MONTH)
        if kind == "foreign":
            other = enrolled(make_authority(folder / "ca"), folder, kind)
            return dataclasses.replace(other, authority=self.authority.certificate, fabric=self.authority.fabric)
        return self_signed(self.node("model"), folder)
