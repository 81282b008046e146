"""POST /v1/link: who gets a key for a link, and what the node counts."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from node.bench.linkcrowd import Crowd
from node.client import Client
from node.errors import SettingsError
from node.link.packet import VERSION
from node.linkclient import LinkEnd
from node.runtime import Node
from node.server.app import LINKS
from node.server.links import _is_here

Start = Callable[..., Awaitable[Node]]


WANTED = b'{"versions": [%d]}' % VERSION


async def ask(node: Node, key: str | None = None, body: bytes = WANTED) -> tuple[int, dict[str, Any]]:
    headers, url = {"Authorization": f"Bearer {key}"} if key else {}, f"{node.url}/v1/link"
    async with aiohttp.ClientSession() as session, session.post(url, headers=headers, data=body) as response:
        return response.status, await response.json()


async def test_a_key_is_handed_out_to_this_machine(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    (status, first), (_, second) = await ask(node), await ask(node)
    assert status == 200
    assert len(base64.b64decode(str(first["secret"]))) == 32
    assert first["secret"] != second["secret"]
    assert first["link"] != second["link"]
    assert first["port"] == second["port"]


@pytest.mark.parametrize(
    "said",
    [f'{{"versions": [{VERSION}]}}', f'{{"versions": {[VERSION + 2, VERSION + 1, VERSION]}, "later": "more"}}'],
)
async def test_the_version_is_agreed_on(start_node: Start, said: str) -> None:
    status, told = await ask(await start_node(engine_kind="echo", link_enabled=True), body=said.encode())
    assert (status, told["version"]) == (200, VERSION)


@pytest.mark.parametrize("said", ["[]", f"[{VERSION + 1}]", "[0, -1]", "[18446744073709551616]"])
async def test_a_version_that_is_not_spoken_is_refused_with_the_one_that_is(start_node: Start, said: str) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    status, told = await ask(node, body=b'{"versions": %s}' % said.encode())
    assert status == 400
    assert (told["error"]["code"], told["error"]["param"]) == ("unsupported_value", "versions")
    assert f"version {VERSION}" in told["error"]["message"]
    assert len(node._app[LINKS]._links) == 0


@pytest.mark.parametrize("said", ["", "{}"])
async def test_who_says_nothing_speaks_the_first_version(start_node: Start, said: str) -> None:
    status, told = await ask(await start_node(engine_kind="echo", link_enabled=True), body=said.encode())
    assert (status, told["error"]["param"]) == (400, "versions")


@pytest.mark.parametrize(
    "said", ["[]", "nonsense", '{"versions": 1}', '{"versions": ["1"]}', f'{{"versions": {[1] * 65}}}']
)
async def test_a_body_that_makes_no_sense_is_refused(start_node: Start, said: str) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    assert (await ask(node, body=said.encode()))[0] == 400
    assert (await ask(node, body=b" " * 5000))[0] == 413


async def test_a_node_without_links_says_so(start_node: Start) -> None:
    status, body = await ask(await start_node(engine_kind="echo"))
    assert status == 400
    assert "no links" in str(body)


async def test_the_api_key_is_asked_for(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True, server_api_keys="k" * 16)
    assert (await ask(node))[0] == 401
    assert (await ask(node, "k" * 16))[0] == 200


async def test_there_are_at_most_so_many(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True, link_max_links=2)
    assert [(await ask(node))[0] for _ in range(3)] == [200, 200, 503]


async def test_one_key_cannot_keep_the_others_out(start_node: Start) -> None:
    keys = ["a" * 16, "b" * 16, "c" * 16]
    node = await start_node(engine_kind="echo", link_enabled=True, link_max_links=3, server_api_keys=",".join(keys))
    assert [(await ask(node, keys[0]))[0] for _ in range(4)] == [200, 200, 200, 503]
    assert [(await ask(node, keys[1]))[0] for _ in range(2)] == [200, 503], "no more than its share"
    assert (await ask(node, keys[2]))[0] == 200
    assert [(await ask(node, key))[0] for key in keys] == [503, 503, 503]


async def test_what_is_counted(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    _, told = await ask(node)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"garbage of a stranger", ("127.0.0.1", int(str(told["port"]))))
    async with aiohttp.ClientSession() as session, session.get(f"{node.url}/metrics") as response:
        text = await response.text()
    assert "llm_links 1.0" in text
    assert 'llm_link_packets_total{fate="rejected"} 1.0' in text
    assert "llm_link_failures_total 0.0" in text


async def test_a_fault_with_one_link_ends_that_one(start_node: Start) -> None:
    """Its generation is stopped, the failure is counted, and the other link's answer is whole."""
    node = await start_node(engine_kind="echo", engine_echo_rate=100, link_enabled=True)
    crowd = Crowd(node.url, 2, 60)
    try:
        await crowd.open()
        await crowd.ask(0.0)
        await crowd.until(lambda one: one.begun == 2, 60)
        links = node._app[LINKS]
        (broken, linked), (sound, _) = links._links.values()
        broken._acks = None  # type: ignore[assignment]
        await crowd.until(lambda one: one.ended == 1, 60)
        assert crowd.heard[sound.number].exact
        assert not crowd.heard[broken.number].whole
        assert list(links._links) == [sound.number]
        assert all(task.done() for task in linked._answers.tasks)
    finally:
        crowd.close()
    async with aiohttp.ClientSession() as session, session.get(f"{node.url}/metrics") as response:
        assert "llm_link_failures_total 1.0" in await response.text()


async def test_what_was_counted_stays_counted_when_a_link_closes(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    crowd = Crowd(node.url, 2, 30)
    try:
        await crowd.open()
        await crowd.ask(0.0)
        await crowd.until(lambda one: one.ended == 2, 60)
    finally:
        crowd.close()

    async def counted() -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{node.url}/metrics") as response:
            text = await response.text()
        return "\n".join(line for line in text.splitlines() if line.startswith("llm_link_packets_total"))

    before = await counted()
    assert 'fate="sent"} 0.0' not in before
    links = node._app[LINKS]
    for connection, _ in list(links._links.values()):
        links._dead(connection)
    assert await counted() == before


async def test_status_has_a_section_where_links_are_on(start_node: Start) -> None:
    for on in (True, False):
        node = await start_node(engine_kind="echo", link_enabled=on)
        if on:
            async with Client(node.url) as client:
                end = client._http.keep(LinkEnd)
                end.begin()
                async with asyncio.timeout(10):
                    while not end.works:  # noqa: ASYNC110  # it is read, not told
                        await asyncio.sleep(0.01)
                async for _ in client.chat([{"role": "user", "content": "hello there"}], transport="link"):
                    pass
        async with aiohttp.ClientSession() as session, session.get(f"{node.url}/v1/status") as response:
            status = await response.json()
        assert ("links" in status) == on
        if on:
            assert (status["links"]["open"], status["links"]["answering"]) == (1, 1)
            assert status["links"]["bytes_a_byte_of_text"] > 1


async def test_a_port_in_use_is_refused_before_serving(start_node: Start) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(SettingsError, match=r"link\.port|UDP port"):
            await start_node(engine_kind="echo", link_enabled=True, link_port=other.getsockname()[1])


def test_only_this_machine_gets_a_secret_in_the_clear() -> None:
    assert _is_here("127.0.0.1")
    assert _is_here("::1")
    assert not _is_here("192.0.2.7")
    assert not _is_here(None)
    assert not _is_here("nonsense")
