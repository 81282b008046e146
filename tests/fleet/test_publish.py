"""The manager's folder: what is signed by whom, in which order it is written, and what keys it takes."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from node.errors import OperatorError
from node.fleet import durable, keys
from node.fleet.directive import Rollout
from node.fleet.publish import DAYS, Keyring, Publication, today
from node.fleet.refusal import UnsignedProfile
from tests.support.fleets import TODAY, FleetOffice, fleet_node, profile


@pytest.fixture
def office(tmp_path: Path) -> FleetOffice:
    return FleetOffice(tmp_path / "office")


def names(office: FleetOffice) -> set[str]:
    return {path.name for path in (office.repository / "metadata").iterdir()}


def test_a_new_repository_has_every_role(office: FleetOffice) -> None:
    assert names(office) == {f"1.{role}.json" for role in DAYS if role != "timestamp"} | {"timestamp.json"}
    root = office.open().signed("root")
    assert (root.roles["root"].threshold, len(root.roles["root"].keyids)) == (2, 3)
    assert root.roles["timestamp"].keyids == [office.online.public_key.keyid]
    with pytest.raises(OperatorError, match="already"):
        office.begin()


def test_a_folder_without_a_repository_says_so(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="holds no fleet's repository") as refused:
        Publication(tmp_path, today()).version("root")
    assert refused.value.hint == "outpost fleet init"


def test_a_change_writes_only_what_it_changes_and_timestamp_last(
    office: FleetOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = durable.write

    def note(path: Path, data: bytes, mode: int = 0o644) -> None:
        written.append(path.name)
        write(path, data, mode)

    monkeypatch.setattr(durable, "write", note)
    office.add(profile())
    assert written[1:] == ["2.profiles.json", "2.snapshot.json", "timestamp.json"]
    assert written[0].endswith(".toml")


def test_a_rollout_needs_a_signed_profile_and_only_the_online_key(office: FleetOffice) -> None:
    digest = office.add(profile())
    publication = office.open()
    with pytest.raises(OperatorError, match="is not signed"):
        publication.put_rollout(Rollout(name="a", revision=1, profile="kiosk", profile_sha256="f" * 64))
    publication.put_rollout(Rollout(name="a", revision=1, profile="kiosk", profile_sha256=digest))
    assert publication.commit(Keyring((office.online,))) == [
        "metadata/2.rollouts.json",
        "metadata/3.snapshot.json",
        "metadata/timestamp.json",
    ]
    assert [rollout.name for rollout in office.open().rollouts()] == ["a"]


def test_too_few_keys_are_told_and_nothing_is_written(office: FleetOffice) -> None:
    before = names(office)
    publication = office.open()
    publication.renew("root")
    assert publication.missing(Keyring((office.roots[2], office.online))) == {"root": 1}
    with pytest.raises(OperatorError, match=r"root \(1 more\)"):
        publication.commit(Keyring((office.roots[2], office.online)))
    publication = office.open()
    publication.put_profile(profile())
    with pytest.raises(OperatorError, match="profiles"):
        publication.commit(Keyring((office.online,)))
    assert names(office) == before


def test_any_two_of_three_root_keys_do(office: FleetOffice) -> None:
    publication = office.open()
    publication.renew("root")
    publication.commit(Keyring((office.roots[0], office.roots[2], office.online)))
    assert office.open().version("root") == 2


async def test_a_chain_of_root_keys_can_be_followed(tmp_path: Path, office: FleetOffice) -> None:
    office.roll_out(office.add(profile()))
    first = office.root_file.read_bytes()
    holders = list(office.roots)
    for number in range(4):
        fresh = keys.make(tmp_path / f"fresh-{number}.pem")
        publication = office.open()
        publication.replace_key("root", holders[0].public_key.keyid, fresh.public_key)
        publication.commit(Keyring((*holders, fresh, office.offline, office.online)))
        holders = [*holders[1:], fresh]
    office.root_file.write_bytes(first)
    async with fleet_node(tmp_path / "node", office) as node:
        assert (await node.trust.refresh()).rollouts


async def test_a_root_key_that_withstands_quantum_computers(tmp_path: Path, office: FleetOffice) -> None:
    try:
        fresh = keys.make(tmp_path / "pq.pem", kind="ml-dsa-65")
    except OperatorError as error:
        pytest.skip(error.message)
    office.roll_out(office.add(profile()))
    publication = office.open()
    publication.replace_key("root", office.roots[1].public_key.keyid, fresh.public_key)
    publication.commit(Keyring((*office.roots[:2], fresh, office.offline, office.online)))
    publication = office.open()  # from here on it is one of the two that must agree
    publication.renew("root")
    publication.commit(Keyring((office.roots[0], fresh, office.online)))
    async with fleet_node(tmp_path / "node", office) as node:
        assert (await node.trust.refresh()).rollouts


def test_the_ends(office: FleetOffice) -> None:
    publication = office.open()
    for role, days in DAYS.items():
        assert publication.signed(role).expires == TODAY + timedelta(days=days)


def test_a_rollout_can_be_dropped_and_profiles_listed(office: FleetOffice) -> None:
    digest = office.add(profile())
    office.roll_out(digest)
    publication = office.open()
    assert list(publication.profiles().values()) == [digest]
    publication.drop_rollout("first")
    with pytest.raises(OperatorError, match="no rollout"):
        publication.drop_rollout("first")
    publication.commit(office.everyone)
    assert office.open().rollouts() == []
    with pytest.raises(OperatorError, match="There is no"):
        office.open().read("rollouts", "rollouts/first.json")


def test_a_lost_target_and_broken_metadata_are_told(office: FleetOffice) -> None:
    office.roll_out(office.add(profile()))
    shutil.rmtree(office.repository / "targets" / "rollouts")
    with pytest.raises(OperatorError, match="Cannot read"):
        office.open().rollouts()
    (office.repository / "metadata" / "timestamp.json").write_text("{")
    with pytest.raises(OperatorError, match="cannot be used"):
        office.open()


def test_no_secret_is_in_what_gets_uploaded(office: FleetOffice) -> None:
    office.roll_out(office.add(profile()))
    for path in office.repository.rglob("*"):
        if path.is_file():
            assert b"PRIVATE" not in path.read_bytes()
    assert json.loads((office.repository / "metadata" / "timestamp.json").read_bytes())["signed"]["version"] == 3


def test_nodes_believe_a_new_root_only_by_the_old_keys(tmp_path: Path, office: FleetOffice) -> None:
    before = names(office)
    fresh = keys.make(tmp_path / "fresh.pem")
    publication = office.open()
    publication.replace_key("root", office.roots[0].public_key.keyid, fresh.public_key)
    at_hand = Keyring((office.roots[1], fresh, office.online))  # two of the new ones, but one of the old ones
    assert publication.missing(at_hand) == {"root": 1}
    with pytest.raises(OperatorError, match=r"root \(1 more\)"):
        publication.commit(at_hand)
    assert names(office) == before


def test_a_signing_that_was_cut_never_counts(office: FleetOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = office.add(profile())
    office.roll_out(digest, percent=10.0)
    write = durable.write

    def full(path: Path, data: bytes, mode: int = 0o644) -> None:
        if "snapshot" in path.name:
            raise OSError(28, "No space left on device")
        write(path, data, mode)

    monkeypatch.setattr(durable, "write", full)
    with pytest.raises(OperatorError, match="No space"):
        office.roll_out(digest, percent=100.0)
    monkeypatch.setattr(durable, "write", write)
    assert office.open().rollouts()[0].percent == 10.0
    office.add(profile("other"))
    assert office.open().rollouts()[0].percent == 10.0
    office.roll_out(digest, percent=50.0)
    assert office.open().rollouts()[0].percent == 50.0
    assert "3.rollouts.json" in names(office)
    assert office.open().version("rollouts") == 4, "a name never means two things"


def test_two_who_sign_at_the_same_time_lose_nothing(office: FleetOffice) -> None:
    office.roll_out(office.add(profile()))
    first, second = office.open(), office.open()
    first.drop_rollout("first")
    second.renew("rollouts")
    first.commit(office.everyone)
    with pytest.raises(OperatorError, match="Somebody else has signed"):
        second.commit(office.everyone)
    assert office.open().rollouts() == []


async def test_a_withdrawn_profile_cannot_be_chosen(tmp_path: Path, office: FleetOffice) -> None:
    digest = office.add(profile())
    rollout = office.roll_out(digest)
    (target,) = office.open().profiles()
    publication = office.open()
    assert publication.drop_profile(target) == ["first"]
    publication.commit(Keyring((office.offline, office.online)))
    with pytest.raises(OperatorError, match="is not signed"):
        office.open().put_rollout(rollout)
    with pytest.raises(OperatorError, match="No profile"):
        office.open().drop_profile(target)
    with pytest.raises(OperatorError, match="No profile"):
        office.open().drop_profile("indexes/a.json")
    async with fleet_node(tmp_path / "node", office) as node:
        assert (await node.trust.refresh()).rollouts == ()
        with pytest.raises(UnsignedProfile):
            await node.trust.profile(rollout)
