"""Who is let in, on both sides, and what the log is told of everybody else."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.errors import EnrolmentError
from node.mesh import identity as enrolment
from node.mesh.handshake import MeshContext, Refusals, client_context, renew, server_context
from node.mesh.identity import Identity
from tests.mesh.fleets import Fleet

WRONG = {
    "expired": "its certificate is over; issue a new one",
    "future": "its certificate is not valid yet; is a clock wrong?",
    "foreign": "its certificate is of another fleet",
    "self-signed": "its certificate is signed by itself",
}


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port that says `hello` to whoever gets through."""

    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def said(port: int, context: ssl.SSLContext) -> bytes:
    """What a caller hears; nothing where it is refused after its own handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="")
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        writer.close()


def both(fleet: Fleet) -> tuple[Identity, Identity, Refusals, Refusals]:
    return fleet.node("server"), fleet.node("client"), Refusals(), Refusals()


async def test_two_nodes_of_a_fleet(tmp_path: Path) -> None:
    one, other, here, there = both(Fleet(tmp_path))
    server, client = server_context(one, here), client_context(other, there, one.id)
    async with listening(server) as port:
        assert await said(port, client) == b"hello\n"
    assert (server.seen, client.seen) == (other.id, one.id)
    assert here.counts == there.counts == {}


async def test_a_caller_that_knows_only_the_address_learns_who_it_is(tmp_path: Path) -> None:
    one, other, here, there = both(Fleet(tmp_path))
    client = client_context(other, there)
    async with listening(server_context(one, here)) as port:
        await said(port, client)
    assert client.seen == one.id


async def test_another_node_of_the_fleet_is_not_the_one_that_was_meant(tmp_path: Path) -> None:
    one, other, here, there = both(Fleet(tmp_path))
    async with listening(server_context(one, here)) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await said(port, client_context(other, there, "f" * 16))
    assert there.counts == {"it is another node than was announced": 1}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_wrong_caller_is_refused_with_a_line_in_the_log(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path)
    here = Refusals()
    async with listening(server_context(fleet.node("server"), here)) as port:
        assert await said(port, client_context(fleet.wrong(kind), Refusals())) == b""
    assert here.counts == {WRONG[kind]: 1}
    (record,) = [record for record in caplog.records if record.message == "not a neighbour"]
    assert (record.__dict__["reason"], record.__dict__["side"]) == (WRONG[kind], "server")


@pytest.mark.parametrize("kind", WRONG)
async def test_a_wrong_listener_is_refused_by_who_calls_it(tmp_path: Path, kind: str) -> None:
    fleet = Fleet(tmp_path)
    there = Refusals()
    async with listening(server_context(fleet.wrong(kind), Refusals())) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await said(port, client_context(fleet.node("client"), there))
    assert there.counts == {WRONG[kind]: 1}


async def test_who_is_denied_is_refused_at_once(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    one, other, here, there = both(fleet)
    server = server_context(one, here)
    async with listening(server) as port:
        assert await said(port, client_context(other, there)) == b"hello\n"
        renew(server, dataclasses.replace(one, denied=fleet.authority.deny("client")[0]))
        assert await said(port, client_context(other, there)) == b""
    assert here.counts == {"it is denied": 1}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
async def test_older_tls_is_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    one, other, here, there = both(Fleet(tmp_path))
    client = client_context(other, there)
    client.minimum_version, client.maximum_version = version, version
    async with listening(server_context(one, here)) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await said(port, client)
    assert list(here.counts) == ["it does not speak TLS 1.3 with a certificate"]


async def test_a_caller_without_a_certificate_and_one_that_speaks_no_tls(tmp_path: Path) -> None:
    here = Refusals()
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    async with listening(server_context(Fleet(tmp_path).node("server"), here)) as port:
        assert await said(port, bare) == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"hello" not in await reader.read()
        writer.close()
    assert sum(here.counts.values()) == 2


async def test_a_certificate_that_ends_while_a_connection_is_open(tmp_path: Path) -> None:
    one, other, here, there = both(Fleet(tmp_path))
    server = server_context(one, here)
    name = enrolment.urn(one.fabric, other.id)
    told = {"subjectAltName": (("URI", name),), "notAfter": "Jan  1 00:00:00 2020 GMT"}
    with pytest.raises(EnrolmentError, match="is over"):
        server.named(told)
    assert server.named(told | {"notAfter": "Jan  1 00:00:00 2100 GMT"}) == other.id
    with pytest.raises(EnrolmentError, match="another fleet"):
        server.named(told | {"subjectAltName": (("URI", enrolment.urn("f" * 16, other.id)),)})
    with pytest.raises(EnrolmentError, match="names no fleet"):
        server.named(None)
    assert client_context(other, there).protocol == ssl.PROTOCOL_TLS_CLIENT


async def test_a_new_certificate_counts_for_new_connections(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    one, other, here, there = both(fleet)
    server = server_context(fleet.wrong("expired"), here)
    async with listening(server) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await said(port, client_context(other, there))
        renew(server, one)
        assert await said(port, client_context(other, there)) == b"hello\n"


def test_a_key_that_is_gone_is_told(tmp_path: Path) -> None:
    one = Fleet(tmp_path).node("one")
    one.key.unlink()
    with pytest.raises(EnrolmentError, match="cannot be used"):
        server_context(one, Refusals())


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for second in range(100):
            now[0] = second / 10
            refusals.note("one", "server")
        refusals.note("other", "server")
    assert len(caplog.records) == 2
    assert refusals.counts == {"one": 100, "other": 1}


def test_no_session_is_resumed(tmp_path: Path) -> None:
    context = server_context(Fleet(tmp_path).node("one"), Refusals())
    assert isinstance(context, MeshContext)
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET
