"""Answers over a link to a real node, on loopback; what is lost there is lost on purpose."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.answer import Done, TextDelta
from node.client import Client
from node.errors import InvalidRequest, ModelNotFound
from node.link.packet import VERSION
from node.linkclient import LinkEnd
from node.runtime import Node
from node.server.app import LINKS
from tests.support.udp_relay import Relay, relay

Start = Callable[..., Awaitable[Node]]
ASK = [{"role": "user", "content": "Say something long about rivers, please, and do not stop too soon."}]


@asynccontextmanager
async def client_of(node: Node) -> AsyncIterator[Client]:
    async with Client(node.url, rng=lambda: 0.0) as client:
        yield client


async def linked(client: Client) -> LinkEnd:
    """The client's link, once it works."""
    end = client._http.keep(LinkEnd)
    end.begin()
    async with asyncio.timeout(10):
        while not end.works:  # noqa: ASYNC110  # it is read, not told
            await asyncio.sleep(0.01)
    return end


async def text_of(client: Client, transport: str = "link", **more: object) -> tuple[str, Done]:
    text, done = "", None
    async with asyncio.timeout(60):
        async for event in client.chat(ASK, seed=1, transport=transport, **more):  # type: ignore[arg-type]
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Done):
                done = event
    assert done is not None
    return text, done


def told(client: Client) -> list[str]:
    return [happening.what for happening in client.history]


async def test_the_same_text_as_over_http(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        expected, plain = await text_of(client, "sse", max_tokens=200)
        end = await linked(client)
        text, done = await text_of(client, max_tokens=200)
        assert text == expected
        assert done.usage is not None
        assert plain.usage is not None
        assert done.usage.completion_tokens == plain.usage.completion_tokens
        assert done.usage.prompt_tokens == plain.usage.prompt_tokens
        assert done.finish_reason == plain.finish_reason
        assert told(client) == ["opened"]
        assert end.link.path.packets_sent > 0


async def test_it_begins_on_a_websocket_and_moves_when_the_link_works(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        expected, _ = await text_of(client, "sse", max_tokens=400)
        text, _ = await text_of(client, max_tokens=400)
        assert text == expected
        assert told(client) in (["opened", "moved", "resumed"], ["opened"])
        assert client._http.keep(LinkEnd).works


async def test_a_node_without_links_answers_over_the_websocket(start_node: Start) -> None:
    node = await start_node(engine_kind="echo")
    async with client_of(node) as client:
        expected, _ = await text_of(client, "sse", max_tokens=50)
        text, _ = await text_of(client, max_tokens=50)
        assert text == expected
        refused = client._http.keep(LinkEnd).refused
        assert refused is None or "no links" in refused.message


async def test_a_client_of_another_version_stays_on_the_websocket(
    start_node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    monkeypatch.setattr("node.linkclient._WANTED", {"versions": [VERSION + 1]})
    async with client_of(node) as client:
        expected, _ = await text_of(client, "sse", max_tokens=50)
        end = client._http.keep(LinkEnd)
        end.begin()
        assert end._opening is not None
        await asyncio.wait([end._opening], timeout=30)
        assert end.refused is not None
        assert f"version {VERSION}" in end.refused.message
        assert (await text_of(client, max_tokens=50))[0] == expected
        assert not end.works
        refused = end._opening
        end.begin()
        assert end._opening is refused, "it is not asked again"


async def test_a_node_that_takes_another_version_is_not_talked_to(
    start_node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    monkeypatch.setattr("node.linkclient._WANTED", {"versions": [VERSION, VERSION + 1]})
    monkeypatch.setattr("node.link.packet.VERSION", VERSION + 1)
    async with client_of(node) as client:
        end = client._http.keep(LinkEnd)
        end.begin()
        assert end._opening is not None
        await asyncio.wait([end._opening], timeout=30)
        assert end.refused is not None
        assert f"version {VERSION + 1}, not {VERSION}" in end.refused.message


@asynccontextmanager
async def relayed(start_node: Start, **settings: object) -> AsyncIterator[tuple[Client, Relay]]:
    """A client whose link goes through a relay."""
    async with relay() as between:
        node = await start_node(engine_kind="echo", link_enabled=True, link_public_port=between.port, **settings)
        between.node_port = node._app[LINKS].port
        async with client_of(node) as client:
            yield client, between


@pytest.mark.parametrize("share", [0.05, 0.3])
async def test_losses_change_nothing(start_node: Start, share: float) -> None:
    rng = random.Random(5)
    async with relayed(start_node) as (client, between):
        expected, _ = await text_of(client, "sse", max_tokens=300)
        await linked(client)
        between.loses = lambda data: rng.random() < share
        carried = between.carried
        text, _ = await text_of(client, max_tokens=300)
        assert text == expected
        assert told(client) == ["opened"]
        assert between.carried > carried


async def test_silence_moves_the_answer_to_a_websocket(start_node: Start, tmp_path: Path) -> None:
    async with relayed(start_node, streams_database=tmp_path / "streams.db") as (client, between):
        expected, _ = await text_of(client, "sse", max_tokens=600)
        await linked(client)
        text = ""
        async with asyncio.timeout(60):
            async for event in client.chat(ASK, seed=1, transport="link", max_tokens=600):
                if isinstance(event, TextDelta):
                    text += event.text
                    between.loses = lambda data: True
        assert text == expected
        assert told(client) == ["opened", "moved", "resumed"]
        between.loses = lambda data: False
        end = client._http.keep(LinkEnd)
        await end.wake()
        assert end.works, "a link that comes back is used again"
        carried = between.carried
        assert (await text_of(client, max_tokens=100))[0]
        assert between.carried > carried


async def test_a_change_of_address_is_followed(start_node: Start) -> None:
    async with relayed(start_node) as (client, between):
        expected, _ = await text_of(client, "sse", max_tokens=600)
        await linked(client)
        text, moves = "", 0
        async with asyncio.timeout(60):
            async for event in client.chat(ASK, seed=1, transport="link", max_tokens=600):
                if isinstance(event, TextDelta):
                    text += event.text
                    if moves < 3 and len(text) > 100 * (moves + 1):
                        moves += 1
                        between.forget_ports()
        assert text == expected
        assert "moved" not in told(client)


async def test_errors_come_as_over_http(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        await linked(client)
        with pytest.raises(InvalidRequest):
            await text_of(client, temperature=-1.0)
        with pytest.raises(ModelNotFound):
            await text_of(client, model="none such")
        text, _ = await text_of(client, max_tokens=5)
        assert text


async def test_tools_and_logprobs_travel_as_messages(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        await linked(client)
        expected, _ = await text_of(client, "ws", max_tokens=20, logprobs=True, top_logprobs=2)
        text, _ = await text_of(client, max_tokens=20, logprobs=True, top_logprobs=2)
        assert text == expected


async def test_leaving_early_stops_nothing_that_is_resumable_and_frees_the_slot(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        end = await linked(client)
        answer = client.chat(ASK, transport="link", max_tokens=1000)
        async for _ in answer:
            break
        await answer.aclose()
        assert not end._slots
        text, _ = await text_of(client, max_tokens=5)
        assert text


async def test_many_answers_at_once_on_one_link(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        expected, _ = await text_of(client, "sse", max_tokens=100)
        await linked(client)
        texts = await asyncio.gather(*(text_of(client, max_tokens=100) for _ in range(12)))
        assert {text for text, _ in texts} == {expected}


async def test_a_link_whose_slots_are_used_up_is_opened_anew(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        end = await linked(client)
        first = end.link.number
        end._next_slot = 256
        await text_of(client, max_tokens=100)
        await linked(client)
        assert end.link.number != first
        text, _ = await text_of(client, max_tokens=5)
        assert text


async def test_answers_of_a_link_that_is_opened_anew_go_on_beside_those_of_the_next(start_node: Start) -> None:
    """The new link's slots have the numbers of the old one's."""
    node = await start_node(engine_kind="echo", engine_echo_rate=50.0, link_enabled=True)
    async with client_of(node) as client:
        expected, _ = await text_of(client, "sse", max_tokens=150)
        end = await linked(client)
        first = end.link.number
        end._next_slot = 254
        old = [asyncio.create_task(text_of(client, max_tokens=150)) for _ in range(2)]
        async with asyncio.timeout(30):
            while end._next_slot < 256:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            end.begin()
            while not end.works or end.link.number == first:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        end._next_slot = 254
        new = [asyncio.create_task(text_of(client, max_tokens=150)) for _ in range(2)]
        texts = await asyncio.gather(*old, *new)
        assert {text for text, _ in texts} == {expected}


async def test_a_request_that_cannot_be_written_leaves_no_slot_that_waits(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with client_of(node) as client:
        end = await linked(client)
        with pytest.raises(InvalidRequest):
            await text_of(client, user="\ud800")
        assert not end._slots
        assert not end.link._expected


async def test_a_node_without_room_is_asked_again(start_node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.link.udp._SWEEP_S", 0.1)
    node = await start_node(engine_kind="echo", link_enabled=True, link_max_links=1)
    async with client_of(node) as client:
        async with client_of(node) as other:
            await linked(other)
            await text_of(client, max_tokens=5)
            end = client._http.keep(LinkEnd)
            assert end._opening is not None
            await asyncio.wait([end._opening], timeout=30)
            assert end.refused is None
            asked = end._opening
            end.begin()
            assert end._opening is asked, "not at once"
        async with asyncio.timeout(30):
            while not end.works:
                end._not_before = 0.0
                end.begin()
                await asyncio.sleep(0.01)
