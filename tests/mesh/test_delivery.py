"""The way to the hub: nothing leaves before it is confirmed, whatever answers in the hub's place."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from node.errors import SettingsError
from node.mesh import parcel
from node.mesh.delivery import Delivery, key_of, tls
from node.settings import Hub
from node.store.backlog import Reconnect
from node.store.db import Database
from node.store.outbox import OUTBOX, Outbox
from tests.support.hubs import FakeHub, emptied, hub, until
from tests.support.process import free_port


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    database = Database(tmp_path / "outbox.db", "FULL", OUTBOX)
    await database.open()
    yield Outbox(database, 1 << 24, 1e6)
    await database.close()


def quick(settings: Hub, outbox: Outbox, silence_s: float = 30.0) -> Delivery:
    """One whose pauses are hundredths of a second."""
    delivery = Delivery(settings, outbox, "node1", rng=lambda: 0.0, reconnect=Reconnect(0.02, 0.1), silence_s=silence_s)
    outbox.hurry = delivery.hurry
    return delivery


@asynccontextmanager
async def running(delivery: Delivery) -> AsyncIterator[None]:
    task = asyncio.create_task(delivery.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_everything_comes_once_in_order_in_batches(outbox: Outbox) -> None:
    fake = FakeHub()
    async with hub(fake) as url:
        settings = Hub(url=url, key="a-key-of-the-hub", batch_bytes=8192, bytes_per_s=0)
        for number in range(100):
            await outbox.put("s", b"%d" % number, priority="telemetry" if number % 2 else "status")
        async with running(quick(settings, outbox)):
            await emptied(outbox)
            await outbox.put("s", b"late")
            await emptied(outbox)
    first, late = fake.items[:100], fake.items[100:]
    assert [item.body for item in first] == [b"%d" % n for n in [*range(0, 100, 2), *range(1, 100, 2)]]
    assert [item.body for item in late] == [b"late"]
    assert len(set(fake.ids)) == 101
    assert fake.requests >= 4
    assert set(fake.keys) == {"Bearer a-key-of-the-hub"}


async def html(request: web.Request, sent: Any) -> web.Response:
    return web.Response(text="<html>Welcome to the hotel. Please log in.</html>", content_type="text/html")


def says(status: int, body: bytes = b"", **headers: str) -> Any:
    async def answer(request: web.Request, sent: Any) -> web.Response:
        return web.Response(status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


async def nothing_accepted(request: web.Request, sent: Any) -> web.Response:
    return web.Response(body=parcel.receipt(["somebody-elses"]))


async def endless(request: web.Request, sent: Any) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(200):
        await response.write(bytes(64 << 10))
    return response


async def cut(request: web.Request, sent: Any) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (html, "not a hub"),
        (says(302, Location="http://portal.example/"), "not a hub"),
        (says(200, b"{}"), "not a hub"),
        (says(204), "not a hub"),
        (nothing_accepted, "not a hub"),
        (says(500, b"oops"), "failing"),
        (says(503, Retry_After="1"), "failing"),
        (says(429, Retry_After="x" * 50), "failing"),
        (says(401), "refused"),
        (says(403), "refused"),
        (says(404), "refused"),
        (endless, "unreachable"),
        (cut, "unreachable"),
    ],
)
async def test_whatever_answers_in_its_place_loses_nothing(outbox: Outbox, answer: Any, state: str) -> None:
    fake = FakeHub()
    good, fake.answer = fake.answer, answer
    async with hub(fake) as url:
        ids = [await outbox.put("s", b"%d" % n) for n in range(5)]
        delivery = quick(Hub(url=url), outbox)
        async with running(delivery):
            await until(lambda: delivery.state == state)
            assert (await outbox.look())["waiting"] == 5
            assert delivery.reason
            assert delivery.status()["failures"] >= 1
            fake.answer = good
            await emptied(outbox)
        assert fake.ids == ids
        assert delivery.status()["state"] == "reached"
        assert "reason" not in delivery.status()


async def test_a_hub_that_is_not_there_is_found_when_it_comes(outbox: Outbox) -> None:
    port = free_port()
    ids = [await outbox.put("s", b"%d" % n) for n in range(5)]
    delivery = quick(Hub(url=f"http://127.0.0.1:{port}"), outbox)
    fake = FakeHub()
    async with running(delivery):
        await until(lambda: delivery.state == "unreachable" and delivery.status()["failures"] > 2)
        async with hub(fake, port):
            await emptied(outbox)
    assert fake.ids == ids


async def test_silence_ends(outbox: Outbox) -> None:
    fake = FakeHub()
    silent = asyncio.Event()

    async def answer(request: web.Request, sent: Any) -> web.StreamResponse:
        await silent.wait()
        return await fake.accept(request, sent)

    fake.answer = answer
    async with hub(fake) as url:
        await outbox.put("s", b"x")
        delivery = quick(Hub(url=url), outbox, silence_s=0.3)
        async with running(delivery):
            await until(lambda: delivery.reason == "it says nothing")
            assert (await outbox.look())["waiting"] == 1
            silent.set()
            await emptied(outbox)


async def test_a_confirmation_that_is_lost_is_made_up_for(outbox: Outbox) -> None:
    """The hub has it, the node does not know: it comes again under the same id."""
    fake = FakeHub()

    async def answer(request: web.Request, sent: Any) -> web.StreamResponse:
        response = await fake.accept(request, sent)
        return await cut(request, sent) if fake.requests == 1 else response

    fake.answer = answer
    async with hub(fake) as url:
        ids = [await outbox.put("s", b"%d" % n) for n in range(3)]
        async with running(quick(Hub(url=url), outbox)):
            await emptied(outbox)
    assert fake.ids[:3] == ids
    assert set(fake.ids) == set(ids)


async def test_what_is_partly_accepted_is_partly_sent_again(outbox: Outbox) -> None:
    fake = FakeHub()

    async def answer(request: web.Request, sent: Any) -> web.StreamResponse:
        kept = sent.items[:2]
        fake.items += kept
        return web.Response(body=parcel.receipt([item.id for item in kept]))

    fake.answer = answer
    async with hub(fake) as url:
        ids = [await outbox.put("s", b"%d" % n) for n in range(7)]
        async with running(quick(Hub(url=url), outbox)):
            await emptied(outbox)
    assert fake.ids == ids


async def test_too_large_a_batch_is_halved_and_too_large_an_item_left_aside(outbox: Outbox) -> None:
    fake = FakeHub()

    async def answer(request: web.Request, sent: Any) -> web.StreamResponse:
        if sum(len(item.body) for item in sent.items) > 5000:
            return web.Response(status=413)
        return await fake.accept(request, sent)

    fake.answer = answer
    async with hub(fake) as url:
        ids = [await outbox.put("s", os.urandom(1500)) for _ in range(12)]
        whale = await outbox.put("s", os.urandom(6000), priority="alarm")
        delivery = quick(Hub(url=url, bytes_per_s=0), outbox)
        async with running(delivery):
            await until(lambda: len(fake.ids) == 12)
    assert fake.ids == ids
    assert delivery.parked == 1
    assert (await outbox.look())["waiting"] == 1
    assert whale not in fake.ids


@pytest.mark.parametrize(("count", "size"), [(1, 100), (2, 100), (3, 100), (2, 2000)])
async def test_a_hub_that_finds_everything_too_large_is_not_asked_without_a_pause(
    outbox: Outbox, count: int, size: int
) -> None:
    """As behind a proxy that is set up wrongly. What is large is left aside, what is small waits with the others."""
    fake = FakeHub()
    good, fake.answer = fake.answer, says(413)
    async with hub(fake) as url:
        for _ in range(count):
            await outbox.put("s", os.urandom(size))
        delivery = quick(Hub(url=url, bytes_per_s=0), outbox)
        async with running(delivery):
            await until(lambda: delivery.state == "failing" or delivery.parked == count)
            requests = fake.requests
            await asyncio.sleep(0.3)
            assert fake.requests - requests < 20, "pauses of 10 to 50 ms; without them it would be hundreds"
            assert (await outbox.look())["waiting"] == count
            fake.answer = good
            if size < 1000:
                await emptied(outbox)


async def test_the_rate_is_kept(outbox: Outbox) -> None:
    """In real time, but only from below: so many bytes cannot have come faster."""
    fake = FakeHub()
    async with hub(fake) as url:
        for _ in range(10):
            await outbox.put("s", os.urandom(4000))
        began = asyncio.get_running_loop().time()
        async with running(quick(Hub(url=url, batch_bytes=4096, bytes_per_s=40_000), outbox)):
            await emptied(outbox)
        took = asyncio.get_running_loop().time() - began
    assert sum(fake.sizes) - 40_000 <= took * 40_000
    assert len(fake.sizes) == 10


async def test_the_certificate_is_checked(outbox: Outbox, tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    for name, ca in (("good", authority), ("bad", other)):
        ca.cert_pem.write_to_path(str(tmp_path / name))
    fake = FakeHub()
    app = web.Application()
    app.router.add_post(parcel.PATH, fake.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    await outbox.put("s", b"x")
    wrong = quick(Hub(url=url, ca_file=str(tmp_path / "bad")), outbox)
    async with running(wrong):
        await until(lambda: wrong.state == "unreachable")
    assert "certificate" in wrong.reason
    assert fake.requests == 0
    async with running(quick(Hub(url=url, ca_file=str(tmp_path / "good")), outbox)):
        await emptied(outbox)
    await runner.cleanup()
    with pytest.raises(SettingsError, match="ca_file"):
        tls(Hub(ca_file=str(tmp_path / "none")))


def test_the_key_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "key"
    settings = Hub(key_file=str(file))
    assert key_of(settings) == ""
    file.write_text("first\n")
    assert key_of(settings) == "first"
    file.write_text("second")
    assert key_of(settings) == "second"
    assert key_of(Hub(key="plain")) == "plain"
    file.write_text("two\nlines")
    assert key_of(settings) == ""


@pytest.mark.parametrize("key", ["two\r\nX-Lines: 1", "schl\u00fcssel"])
async def test_a_key_that_is_none_does_not_end_the_delivery(outbox: Outbox, key: str) -> None:
    fake = FakeHub()
    async with hub(fake) as url:
        await outbox.put("s", b"x")
        async with running(quick(Hub(url=url, key=key), outbox)):
            await emptied(outbox)
    assert fake.keys == [""]


async def test_an_address_with_its_v1_is_the_same_address(outbox: Outbox) -> None:
    fake = FakeHub()
    async with hub(fake) as url:
        await outbox.put("s", b"x")
        async with running(quick(Hub(url=f"{url}/v1/"), outbox)):
            await emptied(outbox)
    assert fake.bodies == [b"x"]


async def test_ten_minutes_without_a_hub_lose_nothing_and_cost_little(outbox: Outbox) -> None:
    """Five thousand records in virtual time: the clock goes on only while the delivery waits."""
    now, dice, port, fake = 0.0, random.Random(4), free_port(), FakeHub()
    settings = Hub(url=f"http://127.0.0.1:{port}", bytes_per_s=0)
    delivery = Delivery(settings, outbox, "node1", rng=dice.random, clock=lambda: now)
    puts = (outbox.put("node", b"record %d" % n, priority="telemetry", key=f"r{n}") for n in range(5000))
    ids = await asyncio.gather(*puts)
    async with delivery.connected():
        while now < 600:
            await delivery.step()
            now += delivery.retry_in_s or 1.0
        assert delivery.attempts <= 16
        assert (await outbox.look())["waiting"] == 5000
        async with hub(fake, port):
            while await delivery.step() or delivery.retry_in_s:
                now += delivery.retry_in_s
    assert (await outbox.look())["waiting"] == 0
    assert fake.ids == list(ids)
    assert now < 600 + 300 + 60, "within one longest pause of the hub's return"
