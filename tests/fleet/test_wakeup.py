"""A real broker wakes a node, is away, comes back, and sends what it should not; the node looks within its bound."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trustme

from node.commands.fleet_wake import publish
from node.errors import SettingsError
from node.fleet.broker import MOST_MESSAGES, Broker, broker_of, connection, leave
from node.fleet.installed import InMemory
from node.fleet.membership import WALL, Clock
from node.fleet.slots import Slots
from node.fleet.wakeup import Wakeup, identifier, read
from node.settings import Fleet
from tests.fleet.test_broker import UNCLOSED
from tests.fleet.test_updater import NEW, Kit
from tests.support.fleet_node import FakeManager, Hands, rollout
from tests.support.mosquitto import Mosquitto, add_user, needs_mosquitto
from tests.support.process import free_port

AT_ONCE = Clock(WALL.now, WALL.uptime, WALL.minute, lambda: 0.0)
QUICK = (0.02, 0.1)
LONG_S = 3600.0
ONCE = (LONG_S, LONG_S)


class Woken:
    """A node's wake-up, and how often it called."""

    def __init__(
        self,
        url: str,
        *,
        least_s: float = 0.0,
        node: str = "node-1",
        pauses: tuple[float, float] = QUICK,
        **more: str,
    ) -> None:
        self.calls = 0
        settings = Fleet(url="/repository", wake_url=url, wake_least_s=least_s, **more)  # type: ignore[arg-type]
        self.wakeup = Wakeup(settings, node, self._call, AT_ONCE, pauses)

    def _call(self) -> None:
        self.calls += 1

    @property
    def told(self) -> dict[str, object]:
        return dict(self.wakeup.status()["wakeup"])

    async def connected(self) -> None:
        await until(lambda: bool(self.told["connected"]))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def send(broker: Broker, *payloads: bytes, retain: bool = False) -> None:
    """As anybody can who may publish there."""
    client = connection(broker, "")
    async with client:
        for payload in payloads:
            await client.publish(broker.topic, payload, 1, retain)
    leave(client)


def at(broker: Mosquitto) -> Broker:
    return broker_of(Fleet(wake_url=broker.url()))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    made = Mosquitto(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def woken(broker: Mosquitto) -> AsyncIterator[Woken]:
    made = Woken(broker.url())
    await made.wakeup.start()
    await made.connected()
    yield made
    await made.wakeup.stop()


def test_an_identifier_stays_and_is_one_that_every_broker_takes() -> None:
    assert identifier("kiosk-7") == identifier("kiosk-7") != identifier("kiosk-8")
    for node in ("", "kiosk-7", "ä" * 500):
        assert identifier(node).isalnum()
        assert len(identifier(node)) == 23


@pytest.mark.parametrize("payload", [b"", b"-1", b"1 ", b"1e3", "٣".encode(), b"9" * 21, "12", None, 7, b"\x00"])
def test_what_is_no_revision_is_none(payload: object) -> None:
    assert read(payload) is None


def test_a_revision_is_kept_as_it_was_written() -> None:
    assert read(b"0042") == b"0042"
    assert read(b"9" * 20) == b"9" * 20


async def test_without_a_broker_there_is_nothing() -> None:
    wakeup = Wakeup(Fleet(url="/repository"), "n", lambda: None)
    await wakeup.start()
    assert wakeup.status() == {}
    await wakeup.stop()


async def test_a_broker_without_a_repository_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match=r"no fleet\.url"):
        await Wakeup(Fleet(wake_url="mqtt://localhost/a"), "n", lambda: None).start()


@needs_mosquitto
async def test_a_message_makes_the_updater_look_and_begin(broker: Mosquitto, tmp_path: Path) -> None:
    manager = FakeManager()
    manager.add(NEW)
    kit = await Kit(InMemory(), Slots(tmp_path), manager, Hands()).boot()
    wakeup = Wakeup(Fleet(url="/r", wake_url=broker.url()), "node-1", kit.updater.wake)
    await kit.updater.start()
    await until(lambda: manager.looks == 1)
    await wakeup.start()
    await until(lambda: wakeup.status()["wakeup"]["connected"])
    manager.wants(rollout(NEW))
    before = asyncio.get_running_loop().time()
    await publish(at(broker), 7)
    await until(lambda: kit.state == "probation")
    assert asyncio.get_running_loop().time() - before < 10, "and not after a quarter of an hour"
    assert manager.looks == 2
    await wakeup.stop()
    await kit.updater.stop()


@needs_mosquitto
async def test_it_wakes_once_for_a_revision_and_tells(
    broker: Mosquitto, woken: Woken, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await publish(at(broker), 7)
    await until(lambda: woken.calls == 1)
    await publish(at(broker), 7)
    await publish(at(broker), 8)
    await until(lambda: woken.calls == 2)
    told = woken.told
    assert (told["wakeups"], told["ignored"], told["connected"]) == (2, 0, True)
    assert isinstance(told["last_s"], float)
    assert "reason" not in told
    assert [record.revision for record in caplog.records if "woken" in record.message] == [7, 8]  # type: ignore[attr-defined]


@needs_mosquitto
async def test_a_retained_message_reaches_who_comes_later(broker: Mosquitto) -> None:
    await publish(at(broker), 9)
    late = Woken(broker.url())
    await late.wakeup.start()
    await until(lambda: late.calls == 1)
    await late.wakeup.stop()
    assert late.told["connected"] is False


@needs_mosquitto
async def test_what_comes_while_a_node_is_away_waits_for_it(broker: Mosquitto) -> None:
    for expected in (0, 1):
        one = Woken(broker.url())
        await one.wakeup.start()
        await one.connected()
        await until(lambda one=one, expected=expected: one.calls == expected)  # type: ignore[misc]
        await one.wakeup.stop()
        if not expected:
            await send(at(broker), b"5")  # not retained: only the session keeps it


@needs_mosquitto
async def test_a_broker_may_be_away_at_the_start_die_and_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Mosquitto(tmp_path)
    woken = Woken(broker.url())
    await woken.wakeup.start()
    await until(lambda: woken.told.get("reason") not in (None, "not yet"))
    assert "refused" in str(woken.told["reason"])
    for round in range(2):
        broker.start()
        await woken.connected()
        await publish(at(broker), 10 + round)
        await until(lambda round=round: woken.calls == round + 1)  # type: ignore[misc]
        broker.kill()
        await until(lambda: not woken.told["connected"])
    away = [record for record in caplog.records if "usual times" in record.message and record.levelno >= 30]
    assert 1 <= len(away) <= 4, "it is told when it goes, not at every attempt"
    await woken.wakeup.stop()


@needs_mosquitto
async def test_garbage_is_ignored_and_a_revision_after_it_is_not(
    broker: Mosquitto, woken: Woken, caplog: pytest.LogCaptureFixture
) -> None:
    for payload in (b"\x00\xff", b"go look", b"{}", b"9" * 4000):
        ignored = int(str(woken.told["ignored"]))
        await send(at(broker), payload)
        await until(lambda ignored=ignored: woken.told["ignored"] == ignored + 1)  # type: ignore[misc]
    assert sum("is no revision" in record.message for record in caplog.records) == 1
    await publish(at(broker), 1)
    await until(lambda: woken.calls == 1)


@needs_mosquitto
@pytest.mark.parametrize("retain", [False, True])
async def test_a_large_message_is_cut_off_and_the_next_revision_comes(
    broker: Mosquitto, woken: Woken, retain: bool
) -> None:
    await send(at(broker), b"7" * (1 << 20), retain=retain)
    await until(lambda: "a message of 10485" in str(woken.told.get("reason")) or woken.told["ignored"] == 1)
    await publish(at(broker), 3)
    await until(lambda: woken.calls == 1)
    await woken.connected()


@needs_mosquitto
async def test_a_flood_makes_no_more_looks_than_the_bound(broker: Mosquitto) -> None:
    woken = Woken(broker.url(), least_s=LONG_S)
    await woken.wakeup.start()
    await woken.connected()
    for begin in (1, 51):
        await send(at(broker), *(b"%d" % number for number in range(begin, begin + 50)))
        await until(lambda: woken.calls == 1)
    assert woken.told["wakeups"] == 1
    await woken.wakeup.stop()


@needs_mosquitto
async def test_the_bound_holds_over_connections_and_the_last_message_is_not_lost(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path).start()
    woken = Woken(broker.url(), least_s=0.6)
    await woken.wakeup.start()
    await woken.connected()
    began = asyncio.get_running_loop().time()
    await publish(at(broker), 1)
    await until(lambda: woken.calls == 1)
    broker.kill()
    broker.start()
    await woken.connected()
    await publish(at(broker), 2)
    await publish(at(broker), 3)
    await until(lambda: woken.calls == 2)
    assert asyncio.get_running_loop().time() - began >= 0.6
    await woken.wakeup.stop()
    broker.kill()


@needs_mosquitto
async def test_who_sends_too_many_is_left(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    woken = Woken(broker.url(), least_s=LONG_S)
    await woken.wakeup.start()
    await woken.connected()
    publishing = connection(at(broker), "")
    publishing.pending_calls_threshold = 10_000
    async with publishing:
        await asyncio.gather(*(publishing.publish("fleet/wake", b"x", 0) for _ in range(MOST_MESSAGES + 100)))
        await until(lambda: any("more than 1000" in getattr(record, "reason", "") for record in caplog.records))
    await woken.connected()
    assert woken.calls == 0
    await woken.wakeup.stop()


@needs_mosquitto
async def test_a_login_and_who_may_read_it(tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "kiosk", "s:ecret")
    broker = Mosquitto(tmp_path, f"password_file {users}", anonymous=False).start()
    login = tmp_path / "login"
    login.write_text("kiosk:s:ecret\n")
    login.chmod(0o600)
    right, none = Woken(broker.url(), wake_login_file=str(login)), Woken(broker.url(), node="node-2")
    for one in (right, none):
        await one.wakeup.start()
    await right.connected()
    await until(lambda: "uthori" in str(none.told["reason"]))
    for one in (right, none):
        await one.wakeup.stop()
    broker.kill()


@needs_mosquitto
@UNCLOSED
async def test_a_broker_is_known_by_its_certificate_and_the_node_by_its_own(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    served, own = authority.issue_cert("localhost"), authority.issue_cert("node-1")
    for name, blob in {
        "ca.pem": authority.cert_pem,
        "other.pem": other.cert_pem,
        "server.pem": served.cert_chain_pems[0],
        "server.key": served.private_key_pem,
        "own.pem": own.private_key_and_cert_chain_pem,
    }.items():
        blob.write_to_path(str(tmp_path / name))
    files = f"cafile {tmp_path}/ca.pem", f"certfile {tmp_path}/server.pem", f"keyfile {tmp_path}/server.key"
    broker = Mosquitto(tmp_path, *files, "require_certificate true").start()
    url, certificate = broker.url("mqtts"), str(tmp_path / "own.pem")
    right = Woken(url, wake_ca_file=str(tmp_path / "ca.pem"), wake_certificate=certificate)
    wrong = Woken(url, node="b", pauses=ONCE, wake_ca_file=str(tmp_path / "other.pem"), wake_certificate=certificate)
    named = Woken(
        url.replace("localhost", "127.0.0.1"), node="c", pauses=ONCE, wake_ca_file=str(tmp_path / "ca.pem")
    )  # right authority, wrong name
    for one in (right, wrong, named):
        await one.wakeup.start()
    await right.connected()
    await until(lambda: "certificate verify failed" in str(wrong.told["reason"]))
    await until(lambda: "certificate verify failed" in str(named.told["reason"]))
    for one in (right, wrong, named):
        await one.wakeup.stop()
    broker.kill()
    gc.collect()


async def test_a_place_that_says_nothing_is_left_at_the_end() -> None:
    """A stop while the connection is not made yet."""
    woken = Woken(f"mqtt://127.0.0.1:{free_port()}/a")
    await woken.wakeup.start()
    await woken.wakeup.stop()
    assert woken.told["connected"] is False
