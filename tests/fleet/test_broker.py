"""What the settings say of a broker, every mistake in it, and how much a connection may cost."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import trustme

from node.errors import SettingsError
from node.fleet import profile
from node.fleet.broker import (
    MOST_MESSAGES,
    MOST_PACKET_BYTES,
    Newest,
    TooMuch,
    broker_of,
    cause_of,
    connection,
    leave,
    reason_of,
)
from node.settings import Fleet

# The library leaves what it gives up half-way to the garbage collector.
UNCLOSED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


def of(url: str, **more: str) -> object:
    return broker_of(Fleet(wake_url=url, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "host", "port", "topic"),
    [
        ("mqtt://localhost/a", "localhost", 1883, "a"),
        ("mqtts://broker.example/fleet/wake", "broker.example", 8883, "fleet/wake"),
        ("mqtt://[::1]:2000/a%20b/c", "::1", 2000, "a b/c"),
        ("mqtt://10.0.0.1:1/" + "x" * 200, "10.0.0.1", 1, "x" * 200),
    ],
)
def test_an_address_has_a_broker_and_a_topic(url: str, host: str, port: int, topic: str) -> None:
    broker = broker_of(Fleet(wake_url=url))
    assert (broker.host, broker.port, broker.topic) == (host, port, topic)
    assert (broker.tls is not None) == url.startswith("mqtts")
    assert broker.name == f"{host}:{port}"


@pytest.mark.parametrize(
    "url",
    [
        *("http://h/a", "h/a", "mqtt:///a", "mqtt://h", "mqtt://h/", "mqtt://h/a/#", "mqtt://h/+/b", "mqtt://h/$SYS/a"),
        *("mqtt://h/a%00b", "mqtt://h/a%23", "mqtt://h/a?b", "mqtt://h/a#b", "mqtt://h:x/a", "mqtt://h:70000/a"),
        *("mqtt://[::1/a", "mqtt://h/" + "x" * 201),
    ],
)
def test_what_is_no_address_is_a_mistake_that_shows_a_right_one(url: str) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.wake_url") as caught:
        of(url)
    assert "mqtts://broker.example/fleet/wake" in str(caught.value.hint)


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="password") as caught:
        of("mqtts://me:s3cret@h/a")
    assert "s3cret" not in caught.value.message
    assert "fleet.wake_login_file" in str(caught.value.hint)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiomqtt", None)
    with pytest.raises(SettingsError, match="aiomqtt") as caught:
        of("mqtt://localhost/a")
    assert caught.value.hint == "tools/python tools/install.py --extra mqtt"


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    os.chmod(path, mode)
    return str(path)


def test_a_login_comes_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    broker = broker_of(Fleet(wake_url="mqtt://localhost/a", wake_login_file=written(tmp_path / "l", "me:a:b\n")))
    assert (broker.user, broker.password) == ("me", "a:b")
    assert "a:b" not in repr(broker)


@pytest.mark.parametrize("text", ["", "me", "me:", ":word", "me:two\nlines", "me:" + "x" * 2000])
def test_what_is_no_login_is_a_mistake(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="USER:PASSWORD"):
        of("mqtt://localhost/a", wake_login_file=written(tmp_path / "l", text))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_login_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SettingsError, match="Others can read") as caught:
        of("mqtt://localhost/a", wake_login_file=written(tmp_path / "l", "me:word", mode))
    assert str(caught.value.hint).startswith("chmod 600")


def test_files_that_are_not_there_are_mistakes(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for key in ("wake_login_file", "wake_ca_file", "wake_certificate"):
        with pytest.raises(SettingsError, match=rf"fleet\.{key}"):
            of("mqtts://h/a", **{key: gone})
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SettingsError, match="USER:PASSWORD"):
        of("mqtts://h/a", wake_login_file=str(tmp_path / "pipe"))


def test_a_login_does_not_cross_the_network_in_the_clear(tmp_path: Path) -> None:
    login = written(tmp_path / "l", "me:word")
    with pytest.raises(SettingsError, match="everybody"):
        of("mqtt://broker.example/a", wake_login_file=login)
    of("mqtts://broker.example/a", wake_login_file=login)


def test_certificates_need_tls_and_are_checked_by_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with pytest.raises(SettingsError, match="mqtts"):
        of("mqtt://localhost/a", wake_ca_file=str(tmp_path / "ca.pem"))
    tls = broker_of(Fleet(wake_url="mqtts://localhost/a", wake_ca_file=str(tmp_path / "ca.pem"))).tls
    assert tls is not None
    assert tls.check_hostname
    assert tls.verify_mode.name == "CERT_REQUIRED"


def test_what_belongs_to_one_node_cannot_stand_in_a_profile() -> None:
    own = {key for key in profile.OWN if key.startswith("fleet.wake_")}
    keys = {f"fleet.{name}" for name in Fleet.__struct_fields__ if name.startswith("wake_")}
    assert keys - own == {"fleet.wake_least_s"}


async def test_only_the_newest_is_kept_and_too_many_are_too_much() -> None:
    kept = Newest(50)
    for number in range(MOST_MESSAGES):
        kept.put_nowait(number)
    assert kept.qsize() == 1
    assert await kept.get() == MOST_MESSAGES - 1
    with pytest.raises(TooMuch, match="within 10 s"):
        kept.put_nowait(0)


@UNCLOSED
async def test_a_packet_that_would_be_large_is_cut_off_while_it_comes() -> None:
    """A broker that is none: it accepts, and begins a message of 256 MiB. The library's private names, watched."""
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\x20\x02\x00\x00" + b"\x30\xff\xff\xff\x7f" + b"\x00\x01a" + bytes(100_000))
        await writer.drain()
        while await reader.read(1000):
            pass
        ended.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = connection(broker_of(Fleet(wake_url=f"mqtt://127.0.0.1:{port}/a")), "one")
    seen: BaseException | None = None
    try:
        async with asyncio.timeout(30), client:
            await client.subscribe("a", 1)
            async for _ in client.messages:
                raise AssertionError("it was no message")
    except Exception as error:  # noqa: BLE001
        seen = cause_of(client, error)
    assert isinstance(seen, TooMuch)
    assert "a message of 268435455 bytes" in reason_of(seen)
    held = len(client._client._in_packet["packet"])
    assert MOST_PACKET_BYTES < held < 8 << 20 or held == 0
    leave(client)
    async with asyncio.timeout(30):
        await ended.wait()
    server.close()
    await server.wait_closed()
    del client
    gc.collect()


def test_a_client_speaks_3_1_1_and_keeps_its_session() -> None:
    async def made() -> tuple[int, bool, bytes]:
        client = connection(broker_of(Fleet(wake_url="mqtt://localhost/a")), "stays", clean=False)
        inner = client._client
        return inner._protocol, inner._clean_session, inner._client_id

    assert asyncio.run(made()) == (paho.MQTTv311, False, b"stays")


def test_a_reason_is_one_short_line() -> None:
    assert reason_of(OSError("a\nb")) == "a b"
    assert reason_of(TimeoutError()) == "TimeoutError"
    assert len(reason_of(OSError("x" * 999))) == 200
