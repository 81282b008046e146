"""Every attack on a fleet's repository is refused under its own name, and a node goes on with what it had."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata, Timestamp

from node.errors import FleetError, SettingsError, TrustError
from node.fleet import keys, places
from node.fleet.directive import ChunkIndex, Rollout
from node.fleet.profile import parse
from node.fleet.publish import DAYS, Keyring, Publication
from node.fleet.refusal import (
    BeyondDelegation,
    BrokenRepository,
    FrozenRepository,
    MixedRepository,
    OldRepository,
    TamperedTarget,
    TooFewSignatures,
    TornMemory,
    UnsignedProfile,
    UnusableProfile,
    WrongKey,
)
from node.fleet.trust import refuse_paths
from tests.support.fleets import TODAY, FixedClock, FleetNode, FleetOffice, fleet_node, profile


@pytest.fixture
def office(tmp_path: Path) -> FleetOffice:
    made = FleetOffice(tmp_path / "office")
    made.roll_out(made.add(profile()))
    return made


@pytest.fixture
async def node(tmp_path: Path, office: FleetOffice) -> AsyncIterator[FleetNode]:
    async with fleet_node(tmp_path / "node", office) as made:
        yield made


def offer(office: FleetOffice, repository: Path) -> None:
    """Put another repository in the place of the office's."""
    shutil.rmtree(office.repository)
    shutil.copytree(repository, office.repository)


def newest(office: FleetOffice, role: str) -> Path:
    found = (office.repository / "metadata").glob(f"*.{role}.json")
    return max(found, key=lambda path: int(path.name.partition(".")[0]))


async def test_a_node_gets_what_the_manager_signed(node: FleetNode, office: FleetOffice) -> None:
    found = await node.trust.refresh()
    assert [rollout.name for rollout in found.rollouts] == ["first"]
    assert not found.refused
    assert found.signed_at == TODAY.timestamp()
    chosen = await node.trust.profile(found.rollouts[0])
    assert (chosen.name, chosen.settings.engine.slots) == ("kiosk", 3)


async def test_an_idle_look_is_two_small_requests(node: FleetNode) -> None:
    await node.trust.refresh()
    found = await node.trust.refresh()
    assert node.trust.repository is not None
    assert node.trust.repository.requests == 2
    assert node.trust.repository.received < 1000
    assert (await node.trust.profile(found.rollouts[0])).name == "kiosk"
    assert node.trust.repository.requests == 3  # the profile; from now on there is a copy
    await node.trust.refresh()
    await node.trust.profile(found.rollouts[0])
    assert node.trust.repository.requests == 2


async def test_an_old_repository_is_refused(node: FleetNode, office: FleetOffice) -> None:
    old = office.copy("old")
    office.renew()
    await node.trust.refresh()
    offer(office, old)
    with pytest.raises(OldRepository, match="an old one") as refused:
        await node.trust.refresh()
    assert not isinstance(refused.value, TornMemory)
    assert (await node.trust.profile((await refreshed(node)).rollouts[0])).name == "kiosk"


async def refreshed(node: FleetNode) -> object:
    """What the last good look found is still there after a bad one."""
    look = node.trust._seen()
    return node.trust._directives(look)


@pytest.mark.parametrize("damage", ["empty", "gone", "garbage"])
async def test_an_old_repository_is_refused_when_a_power_cut_tore_timestamp_and_snapshot(
    node: FleetNode, office: FleetOffice, damage: str
) -> None:
    old = office.copy("old")
    office.renew()
    await node.trust.refresh()
    for name in ("timestamp.json", "snapshot.json"):
        match damage:
            case "empty":
                (node.metadata / name).write_bytes(b"")
            case "gone":
                (node.metadata / name).unlink()
            case _:
                (node.metadata / name).write_bytes(b'{"signed": ')
    torn = office.copy("current")
    offer(office, old)
    with pytest.raises(TornMemory, match="damaged"):
        await node.trust.refresh()
    offer(office, torn)
    assert (await node.trust.refresh()).rollouts  # heals by itself


async def test_everything_this_node_kept_may_go_but_its_floor(
    tmp_path: Path, node: FleetNode, office: FleetOffice
) -> None:
    old = office.copy("old")
    office.renew()
    await node.trust.refresh()
    shutil.rmtree(node.metadata)
    offer(office, old)
    with pytest.raises(OldRepository):
        await node.trust.refresh()


async def test_parts_of_different_times_are_refused(node: FleetNode, office: FleetOffice) -> None:
    await node.trust.refresh()
    old_snapshot = newest(office, "snapshot").read_bytes()
    office.roll_out(office.add(profile(slots=4)), name="second")
    newest(office, "snapshot").write_bytes(old_snapshot)
    with pytest.raises(MixedRepository, match="different times"):
        await node.trust.refresh()


async def test_an_old_delegation_among_new_metadata_is_refused(node: FleetNode, office: FleetOffice) -> None:
    old = newest(office, "rollouts").read_bytes()
    office.roll_out(office.add(profile(slots=4)), name="second")
    newest(office, "rollouts").write_bytes(old)
    with pytest.raises(MixedRepository):
        await node.trust.refresh()


async def test_a_frozen_timestamp_is_refused(tmp_path: Path, office: FleetOffice) -> None:
    late = FixedClock(TODAY + timedelta(days=8))
    async with fleet_node(tmp_path / "node", office, late) as node:
        with pytest.raises(FrozenRepository, match="timestamp"):
            await node.trust.refresh()


async def test_a_clock_at_its_beginning_does_not_thaw_a_frozen_repository(tmp_path: Path, office: FleetOffice) -> None:
    clock = FixedClock(synced=False)
    clock.now = 0.0
    async with fleet_node(tmp_path / "node", office, clock) as node:
        frozen = office.copy("frozen")
        office.renew(days=30)
        await node.trust.refresh()  # signed thirty days later: this is what time it is at least
        assert await node.trust.now() == office.now.timestamp()
        shutil.rmtree(node.metadata)
        newest_timestamp = office.repository / "metadata" / "timestamp.json"
        offer(office, frozen)
        assert newest_timestamp.exists()
        with pytest.raises(FrozenRepository):
            await node.trust.refresh()


async def test_without_a_clock_a_repository_still_ends(tmp_path: Path, office: FleetOffice) -> None:
    clock = FixedClock(synced=False)
    clock.now = 0.0
    async with fleet_node(tmp_path / "node", office, clock) as node:
        await node.trust.refresh()
        clock.up += 6 * 86_400
        await node.trust.refresh()
        clock.up += 2 * 86_400  # the machine ran for longer than the timestamp holds
        with pytest.raises(FrozenRepository):
            await node.trust.refresh()


async def test_a_clock_in_the_future_that_nobody_set_does_not_count(tmp_path: Path, office: FleetOffice) -> None:
    clock = FixedClock(synced=False)
    clock.now = 4e9
    async with fleet_node(tmp_path / "node", office, clock) as node:
        assert (await node.trust.refresh()).rollouts
        assert await node.trust.now() == office.now.timestamp()


async def test_the_time_is_kept_over_restarts_and_rises_by_the_hour(tmp_path: Path, office: FleetOffice) -> None:
    clock = FixedClock()
    async with fleet_node(tmp_path / "node", office, clock) as node:
        await node.trust.refresh()
        clock.now += 7200
        assert await node.trust.keep_time() == TODAY.timestamp() + 7200
    again = FixedClock(synced=False)
    again.now = 0.0
    async with fleet_node(tmp_path / "node", office, again) as node:
        assert await node.trust.now() == TODAY.timestamp() + 7200


async def test_the_root_keys_can_reset_a_time_that_was_wrong(tmp_path: Path, office: FleetOffice) -> None:
    clock = FixedClock(TODAY + timedelta(days=9999))
    async with fleet_node(tmp_path / "node", office, clock) as node:
        with pytest.raises(FrozenRepository):
            await node.trust.refresh()
        await node.trust.keep_time()
    clock = FixedClock()
    async with fleet_node(tmp_path / "node", office, clock) as node:
        with pytest.raises(FrozenRepository):
            await node.trust.refresh()  # the floor is in the far future
        publication = office.open()
        publication.reset_time()
        publication.commit(office.everyone)
        assert (await node.trust.refresh()).rollouts
        assert await node.trust.now() == TODAY.timestamp()
        clock.now += 100
        assert (await node.trust.refresh()).rollouts


async def test_a_reset_is_not_undone_by_a_timestamp_from_before_it(tmp_path: Path, office: FleetOffice) -> None:
    """The manager's clock was wrong; then `timestamp.json`, which is uploaded last, comes later than the root."""
    clock = FixedClock(synced=False)
    clock.now = 0.0
    async with fleet_node(tmp_path / "node", office, clock) as node:
        office.renew(days=200)
        await node.trust.refresh()
        assert await node.trust.now() == office.now.timestamp()
        wrong = (office.repository / "metadata" / "timestamp.json").read_bytes()
        office.now = TODAY
        publication = office.open()
        publication.reset_time()
        publication.commit(office.everyone)
        right = (office.repository / "metadata" / "timestamp.json").read_bytes()
        (office.repository / "metadata" / "timestamp.json").write_bytes(wrong)
        await node.trust.refresh()
        (office.repository / "metadata" / "timestamp.json").write_bytes(right)
        assert (await node.trust.refresh()).rollouts
        assert await node.trust.now() == TODAY.timestamp()


async def test_a_node_whose_clock_is_right_follows_nobody_into_the_future(tmp_path: Path, office: FleetOffice) -> None:
    async with fleet_node(tmp_path / "node", office) as node:
        office.renew(days=200)
        await node.trust.refresh()
        assert await node.trust.now() == TODAY.timestamp()
        office.now = TODAY
        office.renew(days=0)
        assert (await node.trust.refresh()).rollouts


async def test_the_online_key_cannot_say_that_all_is_over(tmp_path: Path, office: FleetOffice) -> None:
    clock = FixedClock(synced=False)
    clock.now = 0.0
    async with fleet_node(tmp_path / "node", office, clock) as node:
        office.now += timedelta(days=364)  # whoever has the online key can sign this
        publication = office.open()
        publication.renew("timestamp")
        publication.commit(Keyring((office.online,)), DAYS | {"timestamp": 90_000})
        path = office.repository / "metadata" / "timestamp.json"
        forged = Metadata[Timestamp].from_bytes(path.read_bytes())
        forged.signed.unrecognized_fields["x-outpost-signed-at"] = 90_000_000_000
        forged.signatures.clear()
        forged.sign(office.online)
        path.write_bytes(forged.to_bytes())
        await node.trust.refresh()
        assert await node.trust.now() <= (TODAY + timedelta(days=365)).timestamp(), "the profiles' end"


async def test_a_stolen_key_cannot_stop_updates_for_ever(tmp_path: Path, node: FleetNode, office: FleetOffice) -> None:
    stolen = office.open()  # what it signed last has the highest version there can be
    for role in ("rollouts", "snapshot", "timestamp"):
        stolen.signed(role).version = 1 << 40  # type: ignore[arg-type]
    stolen.renew("rollouts")
    before = office.copy("before")
    stolen.commit(office.everyone)
    await node.trust.refresh()
    offer(office, before)
    with pytest.raises(OldRepository):
        await node.trust.refresh()
    new_online = keys.make(tmp_path / "online.pem")
    publication = office.open()
    publication.replace_key("online", office.online.public_key.keyid, new_online.public_key)
    publication.commit(Keyring((*office.roots, office.offline, new_online)))
    assert (await node.trust.refresh()).rollouts
    offer(office, before)
    with pytest.raises(WrongKey):
        await node.trust.refresh()


async def test_a_target_without_our_hash_is_refused_alone(node: FleetNode, office: FleetOffice) -> None:
    publication = office.open()
    publication._put("rollouts", places.rollout_target("odd"), b"{}")
    publication.signed("rollouts").targets[places.rollout_target("odd")].hashes = {"sha512": "a" * 128}
    publication.commit(office.everyone)
    found = await node.trust.refresh()
    assert [rollout.name for rollout in found.rollouts] == ["first"]
    assert "without its SHA-256" in found.refused[0].error.message


async def test_a_folder_among_the_copies_stops_nothing(node: FleetNode) -> None:
    (node.folder / "targets" / "lost+found").mkdir(parents=True)
    assert (await node.trust.refresh()).rollouts


async def test_a_wrong_key_is_refused(tmp_path: Path, node: FleetNode, office: FleetOffice) -> None:
    stranger = FleetOffice(tmp_path / "stranger")
    stranger.roll_out(stranger.add(profile()))
    offer(office, stranger.repository)
    (tmp_path / "root.json").write_bytes((office.folder / "keys" / "root-1.pem").read_bytes())
    honest = FleetOffice(tmp_path / "honest")
    async with fleet_node(tmp_path / "other", honest, url=str(stranger.repository)) as other:
        with pytest.raises(WrongKey, match="not signed by a key"):
            await other.trust.refresh()


async def test_one_signature_of_two_is_refused(node: FleetNode, office: FleetOffice) -> None:
    await node.trust.refresh()
    publication = office.open()
    publication.renew("root")
    publication.commit(office.everyone)
    path = newest(office, "root")
    document = json.loads(path.read_bytes())
    document["signatures"] = document["signatures"][:1]
    path.write_text(json.dumps(document))
    with pytest.raises(TooFewSignatures, match="signed by 1 of its keys, but 2 must agree"):
        await node.trust.refresh()


async def test_the_same_signature_twice_counts_once(node: FleetNode, office: FleetOffice) -> None:
    publication = office.open()
    publication.renew("root")
    publication.commit(office.everyone)
    path = newest(office, "root")
    document = json.loads(path.read_bytes())
    document["signatures"] = document["signatures"][:1] * 2
    path.write_text(json.dumps(document))
    with pytest.raises(TrustError):
        await node.trust.refresh()


async def test_root_keys_can_be_replaced_and_the_old_ones_count_no_more(
    tmp_path: Path, node: FleetNode, office: FleetOffice
) -> None:
    await node.trust.refresh()
    fresh = keys.make(tmp_path / "fresh.pem")
    publication = office.open()
    publication.replace_key("root", office.roots[0].public_key.keyid, fresh.public_key)
    publication.commit(Keyring((*office.everyone.signers, fresh)))
    assert (await node.trust.refresh()).rollouts
    new_online = keys.make(tmp_path / "online.pem")
    publication = office.open()
    publication.replace_key("online", office.online.public_key.keyid, new_online.public_key)
    publication.commit(Keyring((office.roots[1], fresh, office.offline, new_online)))
    assert (await node.trust.refresh()).rollouts
    forged = office.open()  # the old online key goes on as if nothing had happened
    forged.signed("timestamp").version += 1
    forged._roles["timestamp"].signatures.clear()
    forged._roles["timestamp"].sign(office.online)
    (office.repository / "metadata" / "timestamp.json").write_bytes(forged._roles["timestamp"].to_bytes())
    with pytest.raises(WrongKey):
        await node.trust.refresh()


async def test_a_tampered_target_is_refused(node: FleetNode, office: FleetOffice) -> None:
    found = await node.trust.refresh()
    for path in (office.repository / "targets" / "profiles").iterdir():
        path.write_bytes(path.read_bytes().replace(b"slots = 3", b"slots = 9"))
    with pytest.raises(TamperedTarget, match="not the file that was signed"):
        await node.trust.profile(found.rollouts[0])


async def test_a_kept_copy_that_was_changed_is_fetched_again(node: FleetNode, office: FleetOffice) -> None:
    found = await node.trust.refresh()
    await node.trust.profile(found.rollouts[0])
    for path in (node.folder / "targets").iterdir():
        path.write_bytes(b"x" * path.stat().st_size)
    assert (await node.trust.profile(found.rollouts[0])).name == "kiosk"


@pytest.mark.parametrize("target", ["profiles/evil-0123456789abcdef.toml", "rollouts/../../../etc/passwd", "x/y"])
async def test_a_key_that_signs_beyond_its_paths_is_refused(node: FleetNode, office: FleetOffice, target: str) -> None:
    publication = office.open()
    targets = publication.signed("rollouts").targets
    targets[target] = next(iter(targets.values()))
    publication.renew("rollouts")
    publication.commit(office.everyone)
    with pytest.raises(BeyondDelegation, match="not its to sign"):
        await node.trust.refresh()


async def test_a_rollout_can_only_choose_what_the_offline_key_signed(node: FleetNode, office: FleetOffice) -> None:
    evil = Rollout(name="evil", revision=1, profile="kiosk", profile_sha256="e" * 64)
    publication = office.open()
    publication._put("rollouts", places.rollout_target("evil"), json.dumps(evil_fields(evil)).encode())
    publication.commit(office.everyone)
    found = await node.trust.refresh()
    assert [rollout.name for rollout in found.rollouts] == ["first"]  # the others are obeyed all the same
    assert [type(refused.error) for refused in found.refused] == [UnsignedProfile]
    with pytest.raises(UnsignedProfile, match="never signed"):
        await node.trust.profile(evil)


def evil_fields(rollout: Rollout) -> dict[str, object]:
    return {name: getattr(rollout, name) for name in ("name", "revision", "profile", "profile_sha256")}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("bad", b"{"),
        ("bad", b'{"name": "bad", "unknown": 1}'),
        ("bad", b'{"name": "other", "revision": 1, "profile": "kiosk", "profile_sha256": "' + b"a" * 64 + b'"}'),
        ("bad", b"\xff\xfe"),
    ],
)
async def test_a_signed_rollout_that_makes_no_sense_is_refused_alone(
    node: FleetNode, office: FleetOffice, name: str, body: bytes
) -> None:
    publication = office.open()
    publication._put("rollouts", places.rollout_target(name), body)
    publication.commit(office.everyone)
    found = await node.trust.refresh()
    assert [rollout.name for rollout in found.rollouts] == ["first"]
    assert len(found.refused) == 1


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "~/x.gguf", "a/b", ".hidden", "a\\b", "own.GGUF"])
def test_a_profile_may_not_name_a_path(path: str) -> None:
    with pytest.raises(UnusableProfile, match="may not name a path"):
        refuse_paths(profile(model=path.replace("\\", "\\\\")))
    refuse_paths(profile(model="smollm2-135m-instruct"))


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ('[settings.prewarm]\ntemplates = ["Hello", "@/etc/shadow"]', "a path"),
        ('[settings.cloud]\nurl = "https://example.com/v1"', "an address"),
        ('[settings.hub]\nurl = "https://example.com"', "an address"),
        ('[settings.hub]\nnode = "0123456789abcdef"', "an address"),
    ],
)
def test_a_profile_may_not_send_a_node_s_files_and_keys_elsewhere(setting: str, word: str) -> None:
    text = f'name = "kiosk"\ndescription = "A kiosk"\n{setting}\n'
    with pytest.raises(UnusableProfile, match=f"may not name {word}"):
        refuse_paths(parse(text, "a test"))
    refuse_paths(parse('name = "kiosk"\ndescription = "A"\n[settings.cloud]\npolicy = "ask"\n', "a test"))


async def test_a_signed_profile_that_names_a_path_is_refused(node: FleetNode, office: FleetOffice) -> None:
    office.roll_out(office.add(profile("tricky", model="../../../etc/shadow")), name="tricky", profile="tricky")
    found = await node.trust.refresh()
    with pytest.raises(UnusableProfile):
        await node.trust.profile(next(rollout for rollout in found.rollouts if rollout.name == "tricky"))


async def test_a_chunk_index_is_checked(node: FleetNode, office: FleetOffice) -> None:
    right = b'{"sha256": "%s", "size": 3, "chunks": [{"length": 3, "sha256": "%s"}]}'
    bodies = {
        "a": right % (b"a" * 64, b"b" * 64),
        "b": (right % (b"b" * 64, b"b" * 64)).replace(b'"size": 3', b'"size": 4'),
        "c": right % (b"d" * 64, b"b" * 64),
        "e": b"[",
    }
    publication = office.open()
    for digit, body in bodies.items():
        publication.put_index(digit * 64, body)
    publication.commit(office.everyone)
    await node.trust.refresh()
    index = await node.trust.index("a" * 64)
    assert isinstance(index, ChunkIndex)
    assert index.size == 3
    for digit, words in (("b", "add up"), ("c", "another file"), ("e", "no chunk index"), ("f", "has no indexes")):
        with pytest.raises(BrokenRepository, match=words):
            await node.trust.index(digit * 64)


async def test_before_the_first_look_there_is_nothing(node: FleetNode) -> None:
    with pytest.raises(FleetError, match="not looked at"):
        await node.trust.index("a" * 64)


async def test_a_node_without_root_keys_says_where_they_belong(tmp_path: Path, office: FleetOffice) -> None:
    async with fleet_node(tmp_path / "node", office) as node:
        office.root_file.unlink()
        with pytest.raises(SettingsError, match="root keys"):
            await node.trust.refresh()


async def test_copies_of_what_is_not_signed_any_more_go(node: FleetNode, office: FleetOffice) -> None:
    found = await node.trust.refresh()
    await node.trust.profile(found.rollouts[0])
    assert len(list((node.folder / "targets").iterdir())) == 2
    publication = office.open()
    publication.drop_rollout("first")
    publication.commit(office.everyone)
    assert not (await node.trust.refresh()).rollouts
    assert len(list((node.folder / "targets").iterdir())) == 1


async def test_any_byte_of_the_metadata_may_be_wrong(tmp_path: Path, office: FleetOffice) -> None:
    """A flipped byte anywhere in a repository is refused with one of our errors, never with a foreign one."""
    files = sorted((office.repository / "metadata").iterdir())
    for number, path in enumerate(files):
        whole = path.read_bytes()
        for place in range(7, len(whole), max(1, len(whole) // 3)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x21]) + whole[place + 1 :])
            async with fleet_node(tmp_path / f"node-{number}-{place}", office) as node:
                try:
                    await node.trust.refresh()
                except (FleetError, SettingsError):
                    continue  # some bytes say nothing, like a digit of an old version's file
        path.write_bytes(whole)


def test_the_publication_is_what_the_tests_think(office: FleetOffice) -> None:
    assert isinstance(office.open(), Publication)
