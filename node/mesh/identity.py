"""What makes a node one of a fleet: its key, its certificate, the authority that signed it, and who is denied.

All of it lies in one folder of the data directory. The key is made here and is readable by its owner only; what goes to
the authority is a request for a certificate (CSR), what comes back is a bundle of PEM blocks: the certificate, the
authority's own, and, where the authority made the key, that. Without the folder a node has no neighbours.

A fleet is named by `fabric`, 8 bytes in hexadecimal that are derived from the authority's public key; a node by `id`,
as many that are derived from its own. Neither says where a node is or whose it is, and nobody else can be made to fit.
"""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from node.errors import EnrolmentError
from node.mesh import denial

MAX_BYTES = 64 << 10  # of a request or a bundle
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ID = re.compile(r"[0-9a-f]{16}")
_URN = re.compile(r"urn:outpost:([0-9a-f]{16}):([0-9a-f]{16})")
_KEY, _CERTIFICATE, _AUTHORITY, _DENIED = "node.key", "node.crt", "authority.crt", "denied.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """An enrolled node. `name` is what its people call it; only neighbours are told."""

    id: str
    name: str
    fabric: str
    key: Path = field(repr=False)
    certificate: Path
    authority: x509.Certificate
    begins: datetime.datetime
    ends: datetime.datetime
    denied: denial.Denied = denial.NOBODY


def derived(key: ec.EllipticCurvePublicKey, purpose: bytes, size: int = 8) -> bytes:
    """Bytes that name a public key for one purpose (HKDF-SHA256), and say nothing else."""
    public = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return HKDF(hashes.SHA256(), size, salt=None, info=b"outpost " + purpose).derive(public)


def fabric_of(authority: x509.Certificate) -> str:
    """The fleet's name, 16 hexadecimal digits; raises EnrolmentError for a key that is none of ours."""
    return derived(public_key(authority), b"fabric").hex()


def node_id_of(key: ec.EllipticCurvePublicKey) -> str:
    """A node's name, 16 hexadecimal digits."""
    return derived(key, b"node").hex()


def public_key(holder: x509.Certificate | x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """The key of a certificate or a request; raises EnrolmentError unless it is one on P-256."""
    try:
        key = holder.public_key()
    except ValueError as error:
        raise EnrolmentError("This holds no public key that can be read.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise EnrolmentError("This holds a key of another kind than P-256.", hint="Use `outpost fleet` to make it.")
    return key


def urn(fabric: str, node_id: str) -> str:
    """What a node's certificate is for, as its subject alternative name."""
    return f"urn:outpost:{fabric}:{node_id}"


def named(uris: list[str]) -> tuple[str, str]:
    """Fabric and node id of a certificate's URIs; raises EnrolmentError unless there is exactly one of ours."""
    found = [match for uri in uris if (match := _URN.fullmatch(uri))]
    if len(uris) != 1 or len(found) != 1:
        raise EnrolmentError("This is not the certificate of a node: it names no fleet and node.")
    return found[0][1], found[0][2]


def folder_in(home: Path) -> Path:
    """Where a node's enrolment lies."""
    return home / "mesh"


def make_request(folder: Path) -> bytes:
    """A request for a certificate, as PEM; the key is made if there is none. Raises EnrolmentError."""
    path = folder / _KEY
    if path.exists():
        key = _read_key(path)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(path, _pem(key))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def enrol(folder: Path, bundle: bytes, now: datetime.datetime) -> Identity:
    """Take what the authority gave; raises EnrolmentError and leaves an earlier enrolment as it was.

    A certificate that is over is refused here already; one that begins in the future is not, for clocks may be wrong.
    """
    certificates, key = _opened(bundle)
    own, authority = certificates
    if key is not None and not _matches(key, own):
        raise EnrolmentError("The bundle's key and certificate do not belong together.")
    if key is None and not (folder / _KEY).exists():
        raise EnrolmentError(
            "This node never asked for a certificate: it has no key.",
            hint="Begin with `outpost fleet enrol --request`.",
        )
    if key is None and not _matches(_read_key(folder / _KEY), own):
        raise EnrolmentError("This certificate was made for another node's request.")
    _verify(own, authority)
    if own.not_valid_after_utc <= now:
        raise EnrolmentError(f"This certificate ended on {own.not_valid_after_utc:%Y-%m-%d}.", hint="Issue a new one.")
    earlier = load(folder)
    if earlier is not None and earlier.fabric != fabric_of(authority):
        raise EnrolmentError("This node is in another fleet.", hint="Leave that first: outpost fleet leave")
    if key is not None:
        write_private(folder / _KEY, _pem(key))
    write_private(folder / _AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
    write_private(folder / _CERTIFICATE, own.public_bytes(serialization.Encoding.PEM))
    enrolled = load(folder)
    assert enrolled is not None, "all its files were just written"
    return enrolled


def load(folder: Path) -> Identity | None:
    """The enrolment in `folder`, None where there is none; raises EnrolmentError for one that cannot be used."""
    if not (folder / _CERTIFICATE).exists():
        return None
    own, authority = _read_certificate(folder / _CERTIFICATE), _read_certificate(folder / _AUTHORITY)
    key = folder / _KEY
    if not _matches(_read_key(key), own):
        raise EnrolmentError(f"The key and the certificate in {folder} do not belong together.")
    fabric, node_id = _verify(own, authority)
    common = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Identity(
        node_id,
        str(common[0].value) if common else "",
        fabric,
        key,
        folder / _CERTIFICATE,
        authority,
        own.not_valid_before_utc,
        own.not_valid_after_utc,
        _denied(folder / _DENIED, authority),
    )


def deny(folder: Path, text: bytes) -> denial.Denied:
    """Take a list of whom the authority denies; raises EnrolmentError for a foreign or an older one."""
    known = load(folder)
    if known is None:
        raise EnrolmentError("This node is in no fleet.")
    denied = denial.read(text, public_key(known.authority), known.fabric)
    if denied.number < known.denied.number:
        raise EnrolmentError(f"This list has number {denied.number}, and this node has {known.denied.number} already.")
    write_private(folder / _DENIED, text)
    return denied


def denied_text(folder: Path) -> bytes:
    """The newest list of denied nodes as the authority signed it; empty where there is none."""
    path = folder / _DENIED
    return read_bounded(path) if path.exists() else b""


def leave(folder: Path) -> bool:
    """Forget the enrolment, key and all; whether there was any."""
    files = [folder / name for name in (_CERTIFICATE, _KEY, _AUTHORITY, _DENIED)]
    there = [path for path in files if path.exists()]
    for path in there:
        path.unlink()
    return bool(there)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all, and so that it outlives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_suffix(path.suffix + ".part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_bounded(path: Path) -> bytes:
    """A small file's bytes; raises EnrolmentError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise EnrolmentError(f"Cannot read {path}: {error.strerror or error}.") from error
    if len(content) > MAX_BYTES:
        raise EnrolmentError(f"{path} is larger than anything of a fleet's authority can be.")
    return content


def _denied(path: Path, authority: x509.Certificate) -> denial.Denied:
    if not path.exists():
        return denial.NOBODY
    return denial.read(read_bounded(path), public_key(authority), fabric_of(authority))


def _opened(bundle: bytes) -> tuple[tuple[x509.Certificate, x509.Certificate], ec.EllipticCurvePrivateKey | None]:
    try:
        certificates = x509.load_pem_x509_certificates(bundle)
        found = b"PRIVATE KEY-----" in bundle
        key = serialization.load_pem_private_key(bundle, None) if found else None
    except (ValueError, TypeError) as error:
        raise EnrolmentError("This is no bundle of `outpost fleet ca issue`.") from error
    if len(certificates) != 2 or not (key is None or isinstance(key, ec.EllipticCurvePrivateKey)):
        raise EnrolmentError("This is no bundle of `outpost fleet ca issue`: it has other parts.")
    return (certificates[0], certificates[1]), key


def _verify(own: x509.Certificate, authority: x509.Certificate) -> tuple[str, str]:
    """Fabric and id that the certificate names, after all that does not depend on the time was checked."""
    try:
        own.verify_directly_issued_by(authority)
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise EnrolmentError("This certificate was not issued by the authority beside it.") from error
    fabric, node_id = named(names.get_values_for_type(x509.UniformResourceIdentifier))
    if fabric != fabric_of(authority) or node_id != node_id_of(public_key(own)):
        raise EnrolmentError("This certificate names another fleet or node than its keys do.")
    return fabric, node_id


def _matches(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    return key.public_key() == public_key(certificate)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_bounded(path))
    except ValueError as error:
        raise EnrolmentError(f"{path} is no certificate.", hint="Enrol this node again.") from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_bounded(path), None)
    except (ValueError, TypeError) as error:
        raise EnrolmentError(f"{path} is no private key.", hint="Enrol this node again.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise EnrolmentError(f"{path} holds a key of another kind than P-256.")
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
