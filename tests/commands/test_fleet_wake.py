"""A manager tells nodes to look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.cli import main
from node.fleet.broker import broker_of, connection, leave
from node.fleet.publish import Publication, today
from node.settings import Fleet
from tests.support.mosquitto import Mosquitto, needs_mosquitto
from tests.support.process import free_port


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTPOST_PASSPHRASE", raising=False)
    assert main(["fleet", "init"]) == 0
    return tmp_path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path)
    made.start()
    yield made
    made.kill()


async def retained(url: str) -> bytes:
    client = connection(broker_of(Fleet(wake_url=url)), "")
    try:
        async with asyncio.timeout(30), client:
            await client.subscribe("fleet/wake", 1)
            async for message in client.messages:
                assert message.retain
                return bytes(message.payload)
    finally:
        leave(client)
    raise AssertionError("nothing came")


@needs_mosquitto
def test_the_repositorys_revision_stays_at_the_broker(
    desk: Path, broker: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["fleet", "wake", "--url", broker.url()]) == 0
        version = Publication(desk / "repository", today()).version("timestamp")
        assert asyncio.run(retained(broker.url())) == str(version).encode()
        assert main(["fleet", "sign", "--online"]) == 0
    assert "Revision 1 is told at localhost:" in capsys.readouterr().out


def test_a_broker_that_is_away_is_told(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "wake", "--url", f"mqtt://127.0.0.1:{free_port()}/a"]) == 1
    assert "was not told" in capsys.readouterr().err


@needs_mosquitto
def test_a_broker_that_refuses_is_told(tmp_path: Path, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shut = Mosquitto(tmp_path, anonymous=False)
    shut.start()
    assert main(["fleet", "wake", "--url", shut.url()]) == 1
    assert "not told" in capsys.readouterr().err
    shut.kill()


def test_without_a_repository_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "wake", "--url", "mqtt://localhost/a", "--folder", str(tmp_path)]) == 1
    assert main(["fleet", "wake", "--url", "nonsense", "--folder", str(tmp_path)]) == 1
    capsys.readouterr()


def test_a_wrong_address_is_bad_use(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "wake", "--url", "http://h/a"]) == 2
    assert "mqtts://broker.example/fleet/wake" in capsys.readouterr().err
