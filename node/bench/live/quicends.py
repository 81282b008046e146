"""A QUIC stream by aioquic at both ends, with its own congestion control (Reno): a connection a reader.

aioquic is no dependency of the node: `tools/python tools/install.py --extra bench` brings it.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import ssl
import tempfile
from pathlib import Path
from typing import Any

from node.bench.live import script as scripts
from node.bench.live.hosts import NEAR
from node.bench.live.script import Log, Script

SCHEME = "QUIC stream"
_PROTOCOL = ["outpost-bench"]
_DAY = datetime.timedelta(days=1)


def obstacle() -> str:
    """Why it cannot be measured; "" where it can."""
    return (
        ""
        if importlib.util.find_spec("aioquic")
        else "aioquic is missing (tools/python tools/install.py --extra bench)"
    )


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate that nobody checks, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - _DAY, now + _DAY)
    chain, secret = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return chain, secret


async def near(script: Script, log: Log) -> None:
    """Answer until cancelled."""
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.asyncio.server import serve
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import QuicEvent, StreamDataReceived

    tasks: set[asyncio.Task[None]] = set()

    class Answering(QuicConnectionProtocol):
        def quic_event_received(self, event: QuicEvent) -> None:
            if not isinstance(event, StreamDataReceived) or not event.data:
                return
            reply, stream = int(event.data), event.stream_id

            def say(chunk: bytes) -> None:
                last = len(log.times[reply]) == script.talk.chunks
                self._quic.send_stream_data(stream, chunk, end_stream=last)
                self.transmit()

            task = asyncio.create_task(scripts.make(reply, script.talk, log, say))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    configuration = QuicConfiguration(is_client=False, alpn_protocols=_PROTOCOL)
    with tempfile.TemporaryDirectory() as folder:
        configuration.load_cert_chain(*certificate(Path(folder)))
    server = await serve(NEAR, script.port, configuration=configuration, create_protocol=Answering)
    try:
        await asyncio.Future()
    finally:
        server.close()


async def far(script: Script, log: Log) -> None:
    """Ask all that is to be asked."""
    await asyncio.gather(*(_reader(script, log, reader) for reader in range(script.readers)))


async def _reader(script: Script, log: Log, reader: int) -> None:
    from aioquic.asyncio.client import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import QuicEvent, StreamDataReceived

    loop = asyncio.get_running_loop()
    said = bytearray()
    ended = asyncio.Event()

    class Reading(QuicConnectionProtocol):
        reply = 0

        def quic_event_received(self, event: QuicEvent) -> None:
            if isinstance(event, StreamDataReceived):
                said.extend(event.data)
                came = log.times[self.reply]
                came += [loop.time()] * (len(said) // script.talk.size - len(came))
                if event.end_stream:
                    ended.set()

    await scripts.stagger(reader)
    settings: Any = {"is_client": True, "alpn_protocols": _PROTOCOL, "verify_mode": ssl.CERT_NONE}
    configuration = QuicConfiguration(**settings, server_name="bench", idle_timeout=script.deadline_s)
    async with connect(NEAR, script.port, configuration=configuration, create_protocol=Reading) as protocol:
        assert isinstance(protocol, Reading), "it was asked for"
        for reply in scripts.turns(script, reader):
            protocol.reply = reply
            said.clear()
            ended.clear()
            protocol._quic.send_stream_data(protocol._quic.get_next_available_stream_id(), b"%d" % reply, True)
            protocol.transmit()
            await ended.wait()
            if said == scripts.whole_text(reply, script.talk):
                log.whole.append(reply)
            await scripts.pause()
