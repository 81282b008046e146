"""The broker of the wake-up: where it is, who may enter, and one connection to it that stays small.

MQTT 3.1.1 only, which every broker speaks. The protocol is `aiomqtt`'s, an extra. What it leaves open is closed here:
only the newest message is kept, a large one is cut off while it comes, and who sends too many is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import socket
import ssl
import stat
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from node.errors import SettingsError
from node.settings import Fleet

if TYPE_CHECKING:
    import aiomqtt

QOS: Final = 1
MOST_PACKET_BYTES: Final = 4 << 10  # a topic and a number are far less
MOST_MESSAGES: Final = 1000
WITHIN_S: Final = 10.0
_MOST_LOGIN_BYTES = 1 << 10
_RECEIVE_BYTES = 64 << 10
_TIMEOUT_S = 10.0
_KEEPALIVE_S = 60
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_TOPIC = re.compile(r"[^\x00-\x1f\x7f+#$][^\x00-\x1f\x7f+#]{0,199}")
_LOCAL = ("localhost", "127.0.0.1", "::1")

_quiet = logging.getLogger(f"{__name__}.protocol")
_quiet.setLevel(logging.CRITICAL + 1)  # it would write a line a message; how a connection ends is told by our own


class TooMuch(Exception):
    """A broker sends what no wake-up is: it is left."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where messages are, and as whom they are fetched."""

    host: str
    port: int
    topic: str
    tls: ssl.SSLContext | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.host}:{self.port}"


def broker_of(settings: Fleet) -> Broker:
    """The broker that the settings name; raises SettingsError. Reads files."""
    if importlib.util.find_spec("aiomqtt") is None:
        raise SettingsError(
            "An MQTT broker is named, but aiomqtt is not installed.", hint="tools/python tools/install.py --extra mqtt"
        )
    scheme, host, port, topic = _parts(settings.wake_url)
    tls = _tls(settings) if scheme == "mqtts" else None
    if tls is None and (settings.wake_ca_file or settings.wake_certificate):
        raise SettingsError("fleet.wake_ca_file and fleet.wake_certificate need an mqtts: address in fleet.wake_url.")
    user, password = _login(settings.wake_login_file)
    if user is not None and tls is None and host not in _LOCAL:
        raise SettingsError(
            "fleet.wake_login_file would be sent to another machine for everybody to read.",
            hint="Use an mqtts: address in fleet.wake_url.",
        )
    return Broker(host, port, topic, tls, user, password)


def _parts(url: str) -> tuple[str, str, int, str]:
    """Never shows the address, which may have a password in it by mistake."""
    like = "It must be like mqtts://broker.example/fleet/wake."
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise SettingsError(f"fleet.wake_url is no address: {error}.", hint=like) from error
    if parts.scheme not in _PORTS or not host or set(url) & {"?", "#"}:
        raise SettingsError("fleet.wake_url is no mqtt: or mqtts: address with a topic.", hint=like)
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            "fleet.wake_url must not have a name or a password in it.",
            hint="Write USER:PASSWORD into a file, and name it in fleet.wake_login_file.",
        )
    topic = urllib.parse.unquote(parts.path.removeprefix("/"))
    if not _TOPIC.fullmatch(topic):
        raise SettingsError("fleet.wake_url needs one topic as its path, of at most 200 characters.", hint=like)
    return parts.scheme, host, _PORTS[parts.scheme] if port is None else port, topic


def _tls(settings: Fleet) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.wake_ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"Cannot use fleet.wake_ca_file {settings.wake_ca_file}: {error}.") from error
    if settings.wake_certificate:
        try:
            context.load_cert_chain(settings.wake_certificate, settings.wake_key or None, password="")
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"Cannot use fleet.wake_certificate {settings.wake_certificate}: {error}.") from error
    return context


def _login(name: str) -> tuple[str | None, str | None]:
    if not name:
        return None, None
    try:
        handle = os.open(Path(name).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            mode = os.fstat(handle).st_mode
            raw = file.read(_MOST_LOGIN_BYTES + 1) if stat.S_ISREG(mode) else b""
        user, colon, password = raw.decode().rstrip("\r\n").partition(":")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"fleet.wake_login_file cannot be read: {name}.") from error
    if mode & 0o077:
        raise SettingsError(f"Others can read fleet.wake_login_file: {name}.", hint=f"chmod 600 {name}")
    if not (user and colon and password and password.isprintable()) or len(raw) > _MOST_LOGIN_BYTES:
        raise SettingsError(f"fleet.wake_login_file must be a file with one line, USER:PASSWORD: {name}.")
    return user, password


class Newest(asyncio.Queue[Any]):
    """Holds one message, the last; raises TooMuch at more of them than anybody has revisions."""

    def __init__(self, maxsize: int = 1) -> None:
        super().__init__(1)
        self._since, self._count = 0.0, 0

    def put_nowait(self, item: Any) -> None:
        """Take the place of what nobody has read."""
        now = asyncio.get_running_loop().time()
        if now - self._since > WITHIN_S:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > MOST_MESSAGES:
            raise TooMuch(f"more than {MOST_MESSAGES} messages within {WITHIN_S:g} s")
        if self.full():
            self.get_nowait()
        super().put_nowait(item)


def connection(broker: Broker, identifier: str, *, clean: bool = True) -> aiomqtt.Client:
    """For `async with`. Unless it is `clean`, the broker keeps what comes while the node of this identifier is away."""
    import aiomqtt

    client = aiomqtt.Client(
        broker.host,
        broker.port,
        username=broker.user,
        password=broker.password,
        identifier=identifier or None,
        protocol=aiomqtt.ProtocolVersion.V311,
        clean_session=clean,
        logger=_quiet,
        queue_type=Newest,
        max_queued_incoming_messages=1,
        timeout=_TIMEOUT_S,
        keepalive=_KEEPALIVE_S,
        tls_context=broker.tls,
        socket_options=((socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES),),
    )
    _bound(client)
    return client


def _bound(client: aiomqtt.Client) -> None:
    """3.1.1 has no limit for a packet but 256 MiB, and paho collects all of it. Private names; a test watches them."""
    inner: Any = client._client
    read = inner.loop_read

    def loop_read(*args: Any, **kwargs: Any) -> Any:
        try:
            code = read(*args, **kwargs)
            if (length := inner._in_packet["remaining_length"]) > MOST_PACKET_BYTES:
                raise TooMuch(f"a message of {length} bytes")
        except TooMuch as error:
            inner.user_data_set(error)  # the library forgets what happens while it connects
            leave(client)
            raise
        return code

    inner.loop_read = loop_read


def leave(client: aiomqtt.Client) -> None:
    """Let go of a connection that did not end in good order; the library sees its end, and closes it."""
    left: Any = client._client.socket()
    if left is not None:
        with contextlib.suppress(OSError):
            left.shutdown(socket.SHUT_RDWR)


def cause_of(client: aiomqtt.Client, error: BaseException) -> BaseException:
    """What really ended the connection, where the library only says that a call was not answered."""
    known, ended = client._client.user_data_get(), client._disconnected
    seen = ended.exception() if ended.done() and not ended.cancelled() else None
    return known if isinstance(known, TooMuch) else seen or error.__cause__ or error


def reason_of(cause: BaseException) -> str:
    """The same for people, in one line."""
    return " ".join(str(cause).split())[:200] or type(cause).__name__
