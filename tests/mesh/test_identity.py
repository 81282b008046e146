"""Enrolment: keys that stay where they are, certificates that fit, and everything that is refused."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from node.errors import EnrolmentError
from node.mesh import identity
from tests.mesh.fleets import MONTH, NOW, enrolled, make_authority

REAL = datetime.datetime.now(datetime.UTC)


def test_a_node_without_a_folder_is_alone(tmp_path: Path) -> None:
    assert identity.load(identity.folder_in(tmp_path)) is None
    assert not identity.leave(tmp_path)


def test_enrolment_keeps_the_key_at_home(tmp_path: Path) -> None:
    maker, folder = make_authority(tmp_path / "ca"), tmp_path / "node"
    request = identity.make_request(folder)
    assert b"PRIVATE" not in request
    bundle, issued = maker.issue("kiosk", request, MONTH, REAL)
    found = identity.enrol(folder, bundle, REAL)
    assert (found.id, found.name, found.fabric) == (issued.id, "kiosk", maker.fabric)
    assert found == identity.load(folder)
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert "key=" not in repr(found)


def test_two_requests_are_for_one_key(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    identity.make_request(tmp_path / "node")
    assert enrolled(maker, tmp_path / "node", "n").id == enrolled(maker, tmp_path / "node", "n").id


def test_fresh_nodes_have_different_keys(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    assert enrolled(maker, tmp_path / "1", "n").id != enrolled(maker, tmp_path / "2", "n").id


def test_a_bundle_with_the_key_in_it(tmp_path: Path) -> None:
    bundle, issued = make_authority(tmp_path / "ca").issue("n", None, MONTH, REAL)
    assert identity.enrol(tmp_path / "node", bundle, REAL).id == issued.id
    assert (tmp_path / "node" / "node.key").stat().st_mode & 0o777 == 0o600


def test_leaving_removes_the_key(tmp_path: Path) -> None:
    enrolled(make_authority(tmp_path / "ca"), tmp_path / "node", "n")
    assert identity.leave(tmp_path / "node")
    assert not list((tmp_path / "node").iterdir())


def test_a_bundle_for_another_node(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    bundle, _ = maker.issue("n", identity.make_request(tmp_path / "1"), MONTH, REAL)
    with pytest.raises(EnrolmentError, match="never asked"):
        identity.enrol(tmp_path / "2", bundle, REAL)
    identity.make_request(tmp_path / "2")
    with pytest.raises(EnrolmentError, match="another node's request"):
        identity.enrol(tmp_path / "2", bundle, REAL)


def test_another_fleet_does_not_take_a_node_over(tmp_path: Path) -> None:
    first = enrolled(make_authority(tmp_path / "a"), tmp_path / "node", "n")
    with pytest.raises(EnrolmentError, match="another fleet"):
        enrolled(make_authority(tmp_path / "b"), tmp_path / "node", "n")
    assert identity.load(tmp_path / "node") == first


def test_a_certificate_that_is_over_is_refused_and_one_of_the_future_is_not(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    bundle, _ = maker.issue("n", identity.make_request(tmp_path / "node"), MONTH, NOW)
    with pytest.raises(EnrolmentError, match="ended on 2026-12-30"):
        identity.enrol(tmp_path / "node", bundle, NOW + MONTH)
    assert identity.enrol(tmp_path / "node", bundle, NOW - MONTH).begins > NOW - MONTH


def swapped(bundle: bytes, other: bytes) -> bytes:
    """The node's certificate of the first, the authority's of the second."""
    mark = b"-----BEGIN"
    return mark + bundle.split(mark)[1] + mark + other.split(mark)[2]


def test_a_certificate_beside_a_foreign_authority(tmp_path: Path) -> None:
    one, other = make_authority(tmp_path / "a"), make_authority(tmp_path / "b")
    request = identity.make_request(tmp_path / "node")
    bundle, foreign = (maker.issue("n", request, MONTH, REAL)[0] for maker in (one, other))
    with pytest.raises(EnrolmentError, match="not issued by the authority"):
        identity.enrol(tmp_path / "node", swapped(bundle, foreign), REAL)


@pytest.mark.parametrize("text", [b"", b"noise", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_bundle(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(EnrolmentError, match="no bundle"):
        identity.enrol(tmp_path, text, REAL)


def test_a_bundle_with_a_part_missing(tmp_path: Path) -> None:
    bundle, _ = make_authority(tmp_path / "ca").issue("n", None, MONTH, REAL)
    with pytest.raises(EnrolmentError, match="other parts"):
        identity.enrol(tmp_path / "node", b"-----BEGIN" + bundle.split(b"-----BEGIN")[1], REAL)


@pytest.mark.parametrize("name", ["node.key", "node.crt", "authority.crt"])
def test_a_broken_file_says_so(tmp_path: Path, name: str) -> None:
    enrolled(make_authority(tmp_path / "ca"), tmp_path / "node", "n")
    (tmp_path / "node" / name).write_text("broken")
    with pytest.raises(EnrolmentError):
        identity.load(tmp_path / "node")


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    enrolled(make_authority(tmp_path / "ca"), tmp_path / "node", "n")
    (tmp_path / "node" / "authority.crt").unlink()
    with pytest.raises(EnrolmentError, match="Cannot read"):
        identity.load(tmp_path / "node")


def test_files_are_read_within_bounds(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (identity.MAX_BYTES + 1))
    with pytest.raises(EnrolmentError, match="larger"):
        identity.read_bounded(tmp_path / "large")


def test_lists_of_denied_nodes_only_go_forward(tmp_path: Path) -> None:
    maker = make_authority(tmp_path / "ca")
    first = enrolled(maker, tmp_path / "node", "one")
    _, older = maker.deny("one")
    _, newer = maker.deny("one", again_allowed=True)
    assert identity.deny(tmp_path / "node", older).ids == (first.id,)
    assert identity.deny(tmp_path / "node", newer).ids == ()
    with pytest.raises(EnrolmentError, match="has 2 already"):
        identity.deny(tmp_path / "node", older)
    found = identity.load(tmp_path / "node")
    assert found is not None
    assert found.denied.number == 2


def test_a_foreign_list_is_refused(tmp_path: Path) -> None:
    one, other = make_authority(tmp_path / "a"), make_authority(tmp_path / "b")
    enrolled(one, tmp_path / "node", "n")
    enrolled(other, tmp_path / "foreign", "n")
    with pytest.raises(EnrolmentError, match="not signed"):
        identity.deny(tmp_path / "node", other.deny("n")[1])
    with pytest.raises(EnrolmentError, match="in no fleet"):
        identity.deny(tmp_path / "nowhere", b"")


@pytest.mark.parametrize("uris", [[], ["urn:x"], ["urn:outpost:1:2"], ["urn:outpost:" + "a" * 16 + ":" + "b" * 16] * 2])
def test_names_that_are_no_nodes(uris: list[str]) -> None:
    with pytest.raises(EnrolmentError, match="names no fleet"):
        identity.named(uris)
