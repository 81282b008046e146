"""From a profile to a served model: what counts at once, what is verified, and what a failure leaves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from node.errors import EngineFailed, ModelFileError, SettingsError, Unfit
from node.fleet.apply import Applier, Damaged, Terms, located, pin
from node.fleet.boot import over
from node.fleet.profile import Profile, parse
from node.settings import Settings
from tests.conftest import settings
from tests.support.fleet_node import GOLDEN, WRONG, FakeHost, Hands, profile

OLD, NEW = profile("old"), profile("new", slots=5, more=GOLDEN)


def applier(host: FakeHost | None = None, *, room: bool = True) -> tuple[Applier, FakeHost]:
    started = settings(engine_kind="echo")
    host = host or FakeHost(started)
    return Applier(host, Terms(started, over(started)), OLD, lambda _: room, Hands().clock.uptime), host


@pytest.mark.parametrize("room", [True, False])
async def test_a_good_profile_is_served(room: bool) -> None:
    it, host = applier(room=room)
    figures = await it.switch(NEW)
    assert figures.ttft_s is not None
    assert (host.settings.engine.slots, host.exchanges) == (5, [room])
    assert it.is_serving(NEW)
    await it.restore(OLD)
    assert host.settings.engine.slots == 2
    await it.restore(OLD)
    assert len(host.exchanges) == 2, "it serves already"


async def test_what_fails_leaves_what_was(caplog: pytest.LogCaptureFixture) -> None:
    it, host = applier()
    with pytest.raises(Unfit):
        await it.switch(profile("bad", slots=7, more=WRONG))
    host.failing = [EngineFailed("no")]
    with pytest.raises(EngineFailed):
        await it.switch(NEW)
    assert it.is_serving(OLD)
    assert host.exchanges == []


def test_only_the_model_changes_at_once_and_the_rest_is_told() -> None:
    it, _ = applier()
    mixed = profile(
        "mixed", slots=3, more="[settings.websocket]\nheartbeat_s = 30.0\n[settings.power]\nhot_threads = 1\n"
    )
    settings = it.terms.hot(mixed)
    assert (settings.engine.slots, settings.websocket.heartbeat_s) == (3, 15.0)
    assert it.terms.needs_restart(mixed) == ["websocket.heartbeat_s", "power.hot_threads"]
    assert it.terms.needs_restart(NEW) == []
    assert it.terms.hot(None).engine.slots == 8


async def test_a_look_at_what_needs_a_restart_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """`outpost status --watch` must not hash a tuned model at each look, nor fail with a node.toml that was spoilt."""
    started = settings(engine_kind="echo")
    of, read, spoilt = over(started), list[Profile | None](), list[bool]()

    def reading(given: Profile | None) -> Settings:
        read.append(given)
        if spoilt:
            spoilt.append(True)  # the switch itself has still read it; what is told of it has not
        if len(spoilt) > 2:
            raise SettingsError("node.toml is not valid TOML")
        return of(given)

    it = Applier(FakeHost(started), Terms(started, reading), OLD, lambda _: True, Hands().clock.uptime)
    assert it.needs_restart == []
    assert read == [], "the process was started with it"
    await it.switch(profile("hotter", more="[settings.power]\nhot_threads = 1\n"))
    before = len(read)
    assert [it.needs_restart for _ in range(3)] == [["power.hot_threads"]] * 3
    assert len(read) == before
    spoilt.append(True)
    await it.restore(OLD)
    assert (it.is_serving(OLD), it.needs_restart) == (True, [])
    assert "is not known" in caplog.text


async def test_it_waits_for_room_or_a_quiet_moment() -> None:
    it, host = applier(room=False)
    assert await it.may_switch(NEW) == ""
    host.idle = False
    assert "memory" in await it.may_switch(NEW)
    assert await applier(FakeHost(settings(engine_kind="echo")), room=True)[0].may_switch(NEW) == ""


def with_model(sha256: str, name: str = "m") -> str:
    return f'name = "n"\ndescription = "d"\nmodel_sha256 = "{sha256}"\n[settings.model]\nname = "{name}"\n'


async def test_a_damaged_or_missing_file_is_damaged_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x" * 1000)
    started = settings(model_name=file)
    host = FakeHost(started)
    it = Applier(host, Terms(started, over(started)), None, lambda _: True, Hands().clock.uptime)
    right = parse(with_model(hashlib.sha256(b"x" * 1000).hexdigest(), str(file)), "n")
    await it.verify(right)
    await it.switch(right)
    file.write_bytes(b"y" * 1000)
    with pytest.raises(Damaged, match="SHA-256"):
        await it.verify(right)
    with pytest.raises(Damaged, match="SHA-256"):
        await it.switch(right)
    file.unlink()
    with pytest.raises(Damaged, match="no file"):
        await it.verify(right)
    assert len(host.exchanges) == 1


def test_only_the_profile_s_own_file_is_pinned(tmp_path: Path) -> None:
    other = parse(with_model("ab" * 32, "other"), "n")
    assert pin(None, settings()) is None
    assert pin(other, settings(model_name=tmp_path / "mine.gguf")) is None, "this node's own settings say otherwise"
    assert pin(other, settings(engine_kind="echo")) is None
    assert pin(other, settings(model_name="other", model_variant="tuned.gguf")) is None
    assert pin(OLD, settings()) is None


def test_the_file_that_a_fleet_brought_is_served_under_the_model_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    sha256 = hashlib.sha256(b"fleet").hexdigest()
    wanted = parse(with_model(sha256, "acme"), "n")
    own = settings(model_name="acme")
    assert located(wanted, own) == own, "it is not here yet"
    brought = tmp_path / "models" / f"{sha256}.gguf"
    brought.parent.mkdir()
    brought.write_bytes(b"fleet")
    found = located(wanted, own)
    assert (found.model.name, found.model.variant) == ("acme", str(brought))
    pinned = pin(wanted, found)
    assert pinned is not None
    assert pinned.named == brought
    pinned.close()
    brought.write_bytes(b"fleeX")
    with pytest.raises(ModelFileError, match="SHA-256"):
        pin(wanted, found)
    assert located(wanted, settings(model_name="mine.gguf")).model.variant == "", "this node's own word counts more"
    assert located(None, own) == own
