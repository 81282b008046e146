"""The authority: what it makes, what it refuses, and what stays private."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from node.errors import EnrolmentError
from node.mesh import authority, identity
from tests.mesh.fleets import MONTH, NOW, enrolled, make_authority


def test_a_fresh_authority_has_its_own_key_and_fabric(tmp_path: Path) -> None:
    one, other = make_authority(tmp_path / "one"), make_authority(tmp_path / "other")
    assert one.fabric != other.fabric
    assert len(one.fabric) == 16
    assert authority.load(tmp_path / "one").fabric == one.fabric


def test_private_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    make_authority(tmp_path / "ca")
    assert (tmp_path / "ca").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "ca").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_an_authority_is_never_overwritten(tmp_path: Path) -> None:
    made = make_authority(tmp_path)
    with pytest.raises(EnrolmentError, match="already"):
        make_authority(tmp_path)
    assert authority.load(tmp_path).fabric == made.fabric


@pytest.mark.parametrize("name", ["", "a/b", "-x", "x" * 64, "two words", "ü"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(EnrolmentError, match="cannot be"):
        authority.create(tmp_path / "ca", name, NOW)
    with pytest.raises(EnrolmentError, match="cannot be"):
        make_authority(tmp_path / "good").issue(name, None, MONTH, NOW)


def test_a_certificate_names_fleet_and_node_and_ends(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    bundle, issued = maker.issue("kiosk-7", identity.make_request(tmp_path / "node"), MONTH, NOW)
    own, pinned = x509.load_pem_x509_certificates(bundle)
    assert b"PRIVATE" not in bundle
    assert pinned == maker.certificate
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == [f"urn:outpost:{maker.fabric}:{issued.id}"]
    assert own.not_valid_after_utc == NOW + MONTH
    assert own.not_valid_before_utc == NOW - datetime.timedelta(hours=1)
    assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert maker.issued() == [issued]


def test_a_node_keeps_its_id_when_it_gets_a_new_certificate(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    first = enrolled(maker, tmp_path / "node", "one")
    again = enrolled(maker, tmp_path / "node", "renamed")
    assert (first.id, again.name) == (again.id, "renamed")


def other_requests() -> dict[str, bytes]:
    """Requests that nobody vouches for."""
    name = x509.Name([])
    pem = serialization.Encoding.PEM
    edwards = (
        x509.CertificateSigningRequestBuilder().subject_name(name).sign(ed25519.Ed25519PrivateKey.generate(), None)
    )
    big = x509.CertificateSigningRequestBuilder().subject_name(name)
    large = big.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256())
    return {"none": b"", "noise": b"\x00" * 99, "ed25519": edwards.public_bytes(pem), "p384": large.public_bytes(pem)}


@pytest.mark.parametrize("kind", ["none", "noise", "ed25519", "p384"])
def test_requests_that_are_none_of_ours(tmp_path: Path, kind: str) -> None:
    with pytest.raises(EnrolmentError):
        make_authority(tmp_path).issue("x", other_requests()[kind], MONTH, NOW)


def test_a_request_for_somebody_elses_key(tmp_path: Path) -> None:
    request = bytearray(
        x509.load_pem_x509_csr(identity.make_request(tmp_path / "n")).public_bytes(serialization.Encoding.DER)
    )
    request[-3] ^= 1  # in the signature
    try:
        text = x509.load_der_x509_csr(bytes(request)).public_bytes(serialization.Encoding.PEM)
    except ValueError:
        pytest.skip("this change made it unreadable, which is refused as noise")
    with pytest.raises(EnrolmentError):
        make_authority(tmp_path / "ca").issue("x", text, MONTH, NOW)


def test_denying_by_name_and_allowing_again(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    first, second = enrolled(maker, tmp_path / "1", "one"), enrolled(maker, tmp_path / "2", "two")
    denied, _ = maker.deny("one")
    assert (denied.number, denied.ids) == (1, (first.id,))
    denied, _ = maker.deny(second.id)
    assert set(denied.ids) == {first.id, second.id}
    denied, _ = maker.deny("one", again_allowed=True)
    assert (denied.number, denied.ids) == (3, (second.id,))
    assert maker.denied() == denied


def test_who_is_denied_gets_no_new_certificate(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    enrolled(maker, tmp_path / "1", "one")
    maker.deny("one")
    with pytest.raises(EnrolmentError, match="is denied"):
        enrolled(maker, tmp_path / "1", "one")


def test_nobody_can_deny_whom_it_never_knew(tmp_path: Path) -> None:
    with pytest.raises(EnrolmentError, match="No certificate was ever issued"):
        make_authority(tmp_path).deny("nobody")


@pytest.mark.parametrize("broken", ["authority.key", "authority.crt"])
def test_a_broken_authority_says_so(tmp_path: Path, broken: str) -> None:
    make_authority(tmp_path)
    (tmp_path / broken).write_text("nothing")
    with pytest.raises(EnrolmentError, match="cannot be read"):
        authority.load(tmp_path)


def test_parts_of_two_authorities(tmp_path: Path) -> None:
    make_authority(tmp_path / "a")
    make_authority(tmp_path / "b")
    (tmp_path / "a" / "authority.key").write_bytes((tmp_path / "b" / "authority.key").read_bytes())
    with pytest.raises(EnrolmentError, match="do not belong together"):
        authority.load(tmp_path / "a")


def test_no_authority_at_all(tmp_path: Path) -> None:
    with pytest.raises(EnrolmentError, match="no authority"):
        authority.load(tmp_path)


def test_a_ledger_with_a_broken_line(tmp_path: Path) -> None:
    maker = make_authority(tmp_path)
    (tmp_path / "issued.jsonl").write_text("{\n")
    with pytest.raises(EnrolmentError, match="cannot be read"):
        maker.issued()
