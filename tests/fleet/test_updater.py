"""An update from beginning to end, with every wait, failure and death on the way. No time passes but the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import get_args

import pytest

from node.errors import (
    Conflict,
    EngineFailed,
    FleetError,
    Overloaded,
    SettingsError,
    StoreFailed,
    Unavailable,
    Unreachable,
)
from node.fleet.apply import Applier, Damaged, Terms
from node.fleet.boot import Upkeep, over
from node.fleet.installed import InMemory, Installed, Ledger, _write
from node.fleet.membership import Clock, Membership
from node.fleet.profile import Profile
from node.fleet.refusal import MixedRepository
from node.fleet.rollout import MOST_DEATHS, State, Update
from node.fleet.slots import Slots, digest_of
from node.fleet.updater import Updater
from node.store.db import Database
from tests.conftest import settings
from tests.support.fleet_node import GOLDEN, TOO_FAST, WRONG, FakeHost, FakeManager, Hands, profile, rollout

OLD = profile("old", slots=2)
NEW = profile("new", slots=5, more=GOLDEN)
BAD = profile("bad", slots=7, more=WRONG)
SLOW = profile("slow", slots=6, more=TOO_FAST)
POLL_S = 1000.0


class Kit:
    """One life of a node on what the lives before it have left."""

    def __init__(self, ledger: Ledger, slots: Slots, manager: FakeManager | None, hands: Hands) -> None:
        self.started = settings(engine_kind="echo")
        self.upkeep = Upkeep(over(self.started), lambda: OLD)
        self.upkeep.ledger, self.upkeep.slots = ledger, slots
        self.manager, self.hands = manager, hands
        self.reports: list[dict[str, object]] = []
        self.refusing: list[Exception] = []
        self.room, self.powered = True, True

    async def boot(self) -> Kit:
        await self.upkeep.open()
        self.host = FakeHost(await self.upkeep.prepare())
        terms = Terms(self.host.settings, over(self.started))
        uptime = self.hands.clock.uptime
        self.applier = Applier(self.host, terms, self.upkeep.profile, lambda _: self.room, uptime)
        self.updater = Updater(
            self.upkeep.ledger,
            self.upkeep.slots,
            self.applier,
            self.hands.clock,
            self.upkeep.former,
            Membership("node-1", "lab", POLL_S),
            self.manager,
            self._report,
            self._fits,
            lambda: self.powered,
        )
        await self.updater.load()
        return self

    async def _report(self, told: object) -> None:
        self.reports.append(told)  # type: ignore[arg-type]

    def _fits(self, profile: Profile) -> None:
        if self.refusing:
            raise self.refusing.pop(0)

    @property
    def state(self) -> str:
        return str(self.updater.status()["update"]["state"])

    @property
    def serves(self) -> str:
        name = {2: "old", 5: "new", 6: "slow", 7: "bad"}[self.host.settings.engine.slots]
        assert self.applier.serving is not None
        assert self.applier.serving.name == name, "what it says is what it serves"
        return name

    async def go(self, until: str = "idle", turns: int = 80) -> Kit:
        """Turn after turn, with time passing as asked for."""
        for _ in range(turns):
            pause = await self.updater.turn()
            if self.state == until and (until != "idle" or self.reports or pause == POLL_S):
                return self
            self.hands.at += pause
        raise AssertionError(f"it is {self.state}: {self.updater.status()}")


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def manager() -> FakeManager:
    manager = FakeManager()
    manager.add(NEW, BAD, SLOW)
    return manager


@pytest.fixture
async def kit(tmp_path: Path, manager: FakeManager, hands: Hands) -> Kit:
    return await Kit(InMemory(), Slots(tmp_path), manager, hands).boot()


async def test_a_good_rollout_is_committed_and_reported(kit: Kit, manager: FakeManager) -> None:
    manager.wants(rollout(NEW))
    await kit.go("probation")
    assert kit.serves == "new"
    assert kit.upkeep.former() is OLD, "nothing is committed yet"
    began = kit.hands.at
    await kit.go()
    assert kit.hands.at - began >= 60
    assert kit.upkeep.slots.current == digest_of(NEW)
    assert manager.kept == {"new"}
    (told,) = kit.reports
    assert (told["outcome"], told["rollout"], told["node"]) == ("committed", "spring", "node-1")
    assert "ttft_s" in told["evidence"]  # type: ignore[operator]
    assert manager.fetched == ["new"]
    looks = manager.looks
    assert await kit.updater.turn() == POLL_S
    assert (manager.looks, kit.state) == (looks + 1, "idle"), "it is not done again"


@pytest.mark.parametrize(("bad", "word"), [(BAD, "Golden prompt 1"), (SLOW, "the profile promises 1e+06")])
@pytest.mark.parametrize("rollback", [True, False])
async def test_a_bad_profile_is_rolled_back_reported_and_not_tried_again(
    kit: Kit, manager: FakeManager, bad: Profile, word: str, rollback: bool
) -> None:
    manager.wants(rollout(bad, rollback=rollback))
    await kit.go()
    (told,) = kit.reports
    assert word in str(told["reason"])
    kept = bad is SLOW and not rollback
    assert kit.serves == ("slow" if kept else "old"), "what serves badly may be kept; what answers wrongly never served"
    assert told["outcome"] == ("failed" if kept else "rolled back")
    await kit.updater.turn()
    assert kit.state == "idle"
    manager.wants(rollout(bad, name="another"))
    await kit.updater.turn()
    assert kit.state == "idle", "the same digest at the same revision"
    if not kept:
        manager.wants(rollout(bad, 2))
        await kit.updater.turn()
        assert kit.state == "check"


@pytest.mark.parametrize(
    ("changes", "takes"),
    [
        ({}, True),
        ({"percent": 0.0}, False),
        ({"rings": ("street",)}, False),
        ({"rings": ("street", "lab")}, True),
        ({"start": 2e6}, False),
        ({"stopped": True}, False),
    ],
)
async def test_who_takes_part(kit: Kit, manager: FakeManager, changes: dict[str, object], takes: bool) -> None:
    manager.wants(rollout(NEW, **changes))
    await kit.updater.turn()
    assert (kit.state == "check") == takes


async def test_a_bad_network_is_no_failure(kit: Kit, manager: FakeManager) -> None:
    manager.wants(rollout(NEW))
    await kit.updater.turn()
    for state in ("check", "fetch"):
        manager.failing = [Unavailable("no way"), Unavailable("no way")]
        for _ in range(2):
            with pytest.raises(Unavailable):
                await kit.updater.turn()
        assert kit.state == state
        await kit.updater.turn()
    await kit.go()
    assert kit.serves == "new"


async def test_a_network_that_stays_bad_ends_in_time(kit: Kit, manager: FakeManager) -> None:
    manager.wants(rollout(NEW, timeout_s=600.0))
    await kit.go("fetch")
    kit.hands.at += 601
    await kit.go()
    assert (kit.reports[0]["outcome"], kit.serves) == ("timed out", "old")


async def test_what_this_machine_is_not_is_rejected(kit: Kit, manager: FakeManager) -> None:
    kit.refusing = [SettingsError("for other hardware")]
    manager.wants(rollout(NEW))
    await kit.go()
    assert (kit.reports[0]["outcome"], kit.reports[0]["reason"]) == ("rejected", "for other hardware")


async def test_what_nobody_signed_is_rejected(kit: Kit, manager: FakeManager) -> None:
    manager.profiles.clear()
    manager.wants(rollout(NEW))
    await kit.go()
    assert kit.reports[0]["outcome"] == "rejected"
    manager.profiles[digest_of(NEW)] = OLD
    manager.wants(rollout(NEW, 2))
    await kit.go()
    assert "not the one" in str(kit.reports[-1]["reason"])


async def test_it_waits_for_window_power_and_room(kit: Kit, manager: FakeManager) -> None:
    minute = kit.hands.clock.minute()
    manager.wants(rollout(NEW, window=(((minute + 60) % 1440, (minute + 120) % 1440),)))
    kit.room, kit.host.idle = False, False
    kit.powered = False
    await kit.go("staged")
    for _ in range(3):
        kit.hands.at += await kit.updater.turn()
    assert kit.updater.status()["update"]["waits_for"] == "mains power"
    kit.powered = True
    await kit.updater.turn()
    assert "window" in kit.updater.status()["update"]["waits_for"]
    kit.hands.at += 3600
    await kit.updater.turn()
    assert "memory" in kit.updater.status()["update"]["waits_for"]
    kit.host.idle = True
    await kit.go()
    assert (kit.serves, kit.host.exchanges) == ("new", [False])


@pytest.mark.parametrize("how", ["stopped", "gone", "another digest", "less"])
async def test_a_rollout_that_is_stopped_ends_where_nothing_was_touched(
    kit: Kit, manager: FakeManager, how: str
) -> None:
    minute = kit.hands.clock.minute()
    later = (((minute + 600) % 1440, (minute + 601) % 1440),)
    manager.wants(rollout(NEW, window=later))
    await kit.go("staged")
    if how == "stopped":
        manager.wants(rollout(NEW, 2, stopped=True))
    elif how == "another digest":
        manager.wants(rollout(SLOW, 2, start=1e9))
    else:
        manager.wants(*([] if how == "gone" else [rollout(NEW, 2, percent=0.0)]))
    await kit.updater.turn()
    assert kit.state == "staged", "it does not look again at every turn"
    kit.hands.at += POLL_S
    await kit.go()
    assert (kit.reports[0]["outcome"], kit.serves) == ("dropped", "old")


async def test_a_repository_that_is_away_does_not_end_what_was_wanted(kit: Kit, manager: FakeManager) -> None:
    minute = kit.hands.clock.minute()
    manager.wants(rollout(NEW, window=(((minute + 60) % 1440, (minute + 61) % 1440),)))
    await kit.go("staged")
    kit.hands.at += POLL_S
    manager.failing = [Unavailable("away")]
    await kit.updater.turn()
    assert kit.state == "staged"


async def test_a_load_that_fails_goes_back_and_one_that_is_held_up_waits(kit: Kit, manager: FakeManager) -> None:
    manager.wants(rollout(NEW))
    await kit.go("switch")
    kit.host.failing = [Unavailable("streams still run")]
    await kit.updater.turn()
    assert (kit.state, kit.updater.status()["update"]["waits_for"]) == ("switch", "streams still run")
    kit.host.failing = [EngineFailed("no memory")]
    await kit.go()
    assert (kit.reports[0]["outcome"], kit.serves) == ("rolled back", "old")


async def test_an_engine_that_breaks_in_probation_goes_back(kit: Kit, manager: FakeManager) -> None:
    manager.wants(rollout(NEW, rollback=False))
    await kit.go("probation")
    kit.host.broken = True
    await kit.updater.turn()
    assert kit.state == "rollback"
    kit.host.failing = [EngineFailed("not now")]
    with pytest.raises(EngineFailed):
        await kit.updater.turn()
    await kit.go()
    assert (kit.reports[0]["outcome"], kit.serves) == ("rolled back", "old")


async def test_a_node_that_is_busy_throughout_is_judged_by_what_was_measured_before(
    kit: Kit, manager: FakeManager
) -> None:
    manager.wants(rollout(NEW))
    await kit.go("probation")

    class Full:
        def submit(self, *_: object) -> None:
            raise Overloaded("full")

    kit.host.source = Full()  # type: ignore[assignment]
    await kit.go()
    assert kit.reports[0]["outcome"] == "committed"


async def test_a_damaged_file_is_fetched_again_and_again_but_not_for_ever(
    kit: Kit, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node.fleet.apply import Damaged

    broken = 2

    async def verify(profile: Profile) -> None:
        nonlocal broken
        broken -= 1
        if broken >= 0:
            raise Damaged("another SHA-256")

    monkeypatch.setattr(kit.applier, "verify", verify)
    manager.wants(rollout(NEW))
    await kit.go()
    assert (kit.serves, manager.fetched) == ("new", ["new"] * 3)
    broken = 1000
    kit.reports.clear()
    manager.wants(rollout(SLOW, 2))
    await kit.go()
    assert (kit.reports[0]["outcome"], kit.serves) == ("failed", "new")
    assert "circles" in str(kit.reports[0]["reason"])


async def test_reports_wait_for_who_takes_them(kit: Kit, manager: FakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.wants(rollout(NEW))
    await kit.go("report")

    async def full(told: object) -> None:
        raise FleetError("no room")

    monkeypatch.setattr(kit.updater, "_report", full)
    with pytest.raises(FleetError):
        await kit.updater.turn()
    assert kit.state == "report"
    monkeypatch.setattr(kit.updater, "_report", kit._report)
    await kit.go()
    assert len(kit.reports) == 1


async def test_an_operator_activates_and_nobody_disturbs_it(kit: Kit, manager: FakeManager) -> None:
    told = await kit.updater.activate(NEW, 30.0)
    assert (told["state"], told["to"]) == ("check", "new")
    with pytest.raises(Conflict, match="on its way"):
        await kit.updater.activate(BAD, 0.0)
    kit.powered, kit.room, kit.host.idle = False, False, False
    await kit.go("report")
    assert kit.serves == "new", "an operator's word waits for nothing"
    await kit.updater.turn()
    assert kit.reports == [], "the fleet did not ask for it"
    assert kit.updater.status()["update"]["last"]["outcome"] == "committed"
    assert manager.fetched == []
    for _ in range(2):
        await kit.updater.activate(BAD, 0.0)
        await kit.go("report")
        await kit.updater.turn()
        assert kit.serves == "new", "an operator may try again what failed"


async def test_without_a_manager_it_only_waits(tmp_path: Path, hands: Hands) -> None:
    kit = await Kit(InMemory(), Slots(tmp_path), None, hands).boot()
    assert await kit.updater.turn() == POLL_S
    await kit.updater.activate(NEW, 0.0)
    await kit.go("report")
    assert kit.serves == "new"


async def test_a_committed_profile_whose_file_was_damaged_serves_again_when_it_is_mended(
    kit: Kit, manager: FakeManager
) -> None:
    kit.upkeep.slots.point(kit.upkeep.slots.put(NEW))
    assert kit.serves == "old"
    await kit.updater.turn()
    assert (manager.fetched, kit.serves) == (["new"], "new")


async def test_the_loop_goes_by_itself_and_wakes_when_told(tmp_path: Path, manager: FakeManager, hands: Hands) -> None:
    kit = await Kit(InMemory(), Slots(tmp_path), manager, hands).boot()
    manager.failing = [Unavailable("away")]
    await kit.updater.start()
    manager.wants(rollout(NEW, probation_s=0.0))
    async with asyncio.timeout(30):
        while not kit.reports:
            kit.updater.wake()
            await asyncio.sleep(0.001)
    await kit.updater.stop()
    assert kit.serves == "new"


# Deaths. A node may die before a step is stored, in the middle of storing it, and right after.


class Killed(BaseException):
    """The process is gone."""


class DyingLedger:
    """Stores like the real one, and dies at one state's write."""

    def __init__(self, database: Database, at: State, when: str) -> None:
        self.inner, self.database = Installed(database), database
        self.at, self.when, self.deaths = at, when, 0

    async def load(self):  # type: ignore[no-untyped-def]
        return await self.inner.load()

    async def write(self, update: Update) -> None:
        dies = update.state == self.at and not self.deaths
        self.deaths += dies
        if dies and self.when == "before":
            raise Killed
        if dies and self.when == "within":
            with pytest.raises(ZeroDivisionError):
                await self.database.run(lambda db: (_write(db, update), 1 / 0))
            raise Killed
        await self.inner.write(update)
        if dies:
            raise Killed


class DyingSlots(Slots):
    """Dies in the middle of the n-th write of a file, or before or after it; never again."""

    def __init__(self, folder: Path, at: int, when: str) -> None:
        super().__init__(folder)
        self.left, self.when = at, when

    def _write(self, name: str, data: bytes) -> None:
        self.left -= 1
        if self.left == 0 and self.when == "before":
            raise Killed
        if self.left == 0 and self.when == "within":
            (self.folder / f".{name}.new").write_bytes(data[: len(data) // 2])
            raise Killed
        super()._write(name, data)
        if self.left == 0:
            raise Killed


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "fleet.db")
    await database.open()
    yield database
    await database.close()


async def live(ledger: Ledger, slots: Slots, chosen: Profile, rollback: bool, hands: Hands) -> list[str]:
    """Life after life until the update is over; gives what was served at each start and at the end."""
    manager, served = FakeManager(), []
    manager.add(chosen)
    for _ in range(10):
        try:
            manager.wants(rollout(chosen, rollback=rollback))
            kit = await Kit(ledger, slots, manager, hands).boot()
            served.append(kit.serves)
            await kit.go()
            return [*served, kit.serves]
        except Killed:
            continue
    raise AssertionError(f"it never ends: {served}")


def cases() -> Iterator[tuple[State, str, bool, Profile]]:
    for state in get_args(State):
        for when in ("before", "within", "after"):
            for rollback in (True, False):
                for chosen in (NEW, BAD, SLOW):
                    yield state, when, rollback, chosen


@pytest.mark.parametrize("state", get_args(State))
async def test_wherever_it_dies_it_serves_the_old_or_the_new_profile_and_comes_to_the_same_end(
    state: State, database: Database, tmp_path: Path
) -> None:
    for number, (at, when, rollback, chosen) in enumerate(cases()):
        if at != state:
            continue
        await database.run(
            lambda db: [db.execute(f"DELETE FROM {table}").rowcount for table in ("updating", "updated", "denied")]
        )
        ledger = DyingLedger(database, at, when)
        slots = Slots(tmp_path / str(number))
        served = await live(ledger, slots, chosen, rollback, Hands())
        kept = chosen is NEW or (chosen is SLOW and not rollback)
        assert set(served) <= {"old", chosen.name}, (at, when, rollback, chosen.name)
        assert served[-1] == (chosen.name if kept else "old"), (at, when, rollback, chosen.name)
        assert slots.current == (digest_of(chosen) if kept else ""), (at, when, rollback, chosen.name)
        assert not (await ledger.load()).wants(rollout(chosen)), "it is over, and not tried again"
        met = ledger.deaths == 1
        assert met or (at, chosen) != ("commit", NEW), "the death was met"


@pytest.mark.parametrize("when", ["before", "within", "after"])
@pytest.mark.parametrize("at", [1, 2])
async def test_dying_at_a_file_of_the_slots(at: int, when: str, database: Database, tmp_path: Path) -> None:
    served = await live(Installed(database), DyingSlots(tmp_path, at, when), NEW, True, Hands())
    assert set(served) <= {"old", "new"}
    assert served[-1] == "new"
    assert Slots(tmp_path).current == digest_of(NEW)


async def test_who_dies_too_often_under_the_new_profile_starts_with_the_old_one(
    database: Database, tmp_path: Path, manager: FakeManager, hands: Hands
) -> None:
    manager.wants(rollout(NEW))
    ledger, slots = Installed(database), Slots(tmp_path)
    await (await Kit(ledger, slots, manager, hands).boot()).go("probation")
    for _ in range(MOST_DEATHS - 1):
        kit = await Kit(ledger, slots, manager, hands).boot()
        assert (kit.serves, kit.state) == ("new", "probation")
    kit = await Kit(ledger, slots, manager, hands).boot()
    assert (kit.serves, kit.state) == ("old", "rollback")
    await kit.go()
    assert "died 3 times" in str(kit.reports[0]["reason"])


async def test_clean_reboots_are_no_deaths_and_good_time_adds_up(
    database: Database, tmp_path: Path, manager: FakeManager, hands: Hands
) -> None:
    manager.wants(rollout(NEW, probation_s=100.0))
    ledger, slots = Installed(database), Slots(tmp_path)
    kit = await (await Kit(ledger, slots, manager, hands).boot()).go("probation")
    for _ in range(6):
        hands.at += 15
        await kit.updater.stop()
        hands.at += 5000
        kit = await Kit(ledger, slots, manager, hands).boot()
        assert (kit.serves, kit.state) == ("new", "probation")
    hands.at += 15
    await kit.updater.turn()
    assert kit.state == "commit"
    await kit.go()
    assert kit.reports[0]["outcome"] == "committed"
    assert kit.reports[0]["deaths"] == 0


async def test_a_profile_that_cannot_be_had_now_is_no_refusal(kit: Kit, manager: FakeManager) -> None:
    manager.wants(rollout(NEW))
    await kit.updater.turn()
    for error in (Unreachable("no way"), MixedRepository("being copied"), StoreFailed("full"), FleetError("full")):
        manager.failing = [error]
        with pytest.raises(type(error)):
            await kit.updater.turn()
        assert kit.state == "check", "a bad moment of the network must not count against the rollout"
    await kit.go()
    assert kit.serves == "new"


async def test_a_stopped_rollout_is_not_switched_to_when_its_window_opens(kit: Kit, manager: FakeManager) -> None:
    minute = kit.hands.clock.minute()
    wanted = rollout(NEW, window=(((minute + 10) % 1440, (minute + 60) % 1440),))
    manager.wants(wanted)
    await kit.go("staged")
    manager.wants(rollout(NEW, stopped=True))
    kit.hands.at += 10 * 60  # less than until the next look
    await kit.go()
    assert (kit.reports[0]["outcome"], kit.serves) == ("dropped", "old")
    manager.wants(rollout(NEW))
    await kit.go("probation")
    assert kit.serves == "new", "what was called off may be called for again"


async def test_an_operator_is_answered_while_a_fetch_lasts(
    kit: Kit, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    async def endless(profile: Profile) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(manager, "fetch", endless)
    manager.wants(rollout(NEW))
    await kit.go("fetch")
    turn = asyncio.create_task(kit.updater.turn())
    await began.wait()
    async with asyncio.timeout(5):
        with pytest.raises(Conflict, match="on its way"):
            await kit.updater.activate(BAD, 0.0)
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)


async def test_a_fetch_that_never_ends_is_interrupted_and_runs_out_of_time(
    kit: Kit, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def drips(profile: Profile) -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    monkeypatch.setattr("node.fleet.updater._LEAST_FETCH_S", 0.01)
    monkeypatch.setattr(manager, "fetch", drips)
    monkeypatch.setattr(kit.updater, "_membership", Membership("node-1", "lab", 0.01))
    manager.wants(rollout(NEW, timeout_s=100.0))
    await kit.go()
    assert asked > 1
    assert (kit.reports[0]["outcome"], kit.serves) == ("timed out", "old")


async def test_a_clock_that_is_set_ends_no_update(kit: Kit, manager: FakeManager) -> None:
    minute = kit.hands.clock.minute()
    manager.wants(rollout(NEW, window=(((minute + 5) % 1440, (minute + 4) % 1440),)))
    await kit.go("staged")
    monotonic = kit.hands.at
    kit.updater._clock = kit.updater._pauses._clock = Clock(
        lambda: kit.hands.at + 1e9, lambda: kit.hands.at, lambda: (minute + 6) % 1440, lambda: 0.5
    )
    await kit.updater.turn()
    assert kit.hands.at == monotonic
    await kit.go()
    assert kit.reports[0]["outcome"] == "committed", "a machine without a clock has learnt the time"


async def test_a_switch_that_could_not_be_written_down_is_not_made_twice(kit: Kit, manager: FakeManager) -> None:
    class Full(InMemory):
        full = False

        async def write(self, update: Update) -> None:
            if self.full:
                raise StoreFailed("the disk is full")
            await super().write(update)

    ledger = kit.updater._ledger = Full()
    manager.wants(rollout(NEW))
    await kit.go("switch")
    ledger.full = True
    for _ in range(3):
        with pytest.raises(StoreFailed):
            await kit.updater.turn()
    await kit.updater.stop()
    ledger.full = False
    await kit.go()
    assert kit.serves == "new"
    assert len(kit.host.exchanges) == 1


async def test_a_former_model_that_was_removed_is_fetched_for_the_way_back(
    kit: Kit, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.wants(rollout(NEW))
    await kit.go("probation")
    kit.host.broken = True
    await kit.updater.turn()
    kit.host.failing = [Damaged("there is no file")]  # type: ignore[list-item]
    await kit.go()
    assert (kit.serves, manager.fetched) == ("old", ["new", "old"])


async def test_a_committed_profile_that_was_damaged_comes_again(kit: Kit, manager: FakeManager) -> None:
    for each, revision in ((SLOW, 1), (NEW, 2)):
        manager.wants(rollout(each, revision, rollback=False))
        await kit.go()
    (kit.upkeep.slots.folder / f"{digest_of(NEW)}.toml").write_bytes(b"torn")
    again = await Kit(kit.upkeep.ledger, kit.upkeep.slots, manager, kit.hands).boot()
    assert again.serves == "slow"
    await again.updater.turn()
    assert (again.serves, again.upkeep.former()) == ("new", again.upkeep.slots.get(digest_of(NEW)))


async def test_trouble_with_files_does_not_end_the_loop(
    kit: Kit, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def refused() -> object:
        asked.set()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(manager, "refresh", refused)
    await kit.updater.start()
    assert kit.updater._task is not None
    await asked.wait()
    await asyncio.sleep(0.01)
    assert not kit.updater._task.done()
    await kit.updater.stop()
