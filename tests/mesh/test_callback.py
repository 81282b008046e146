"""Deferred answers to whoever asked to be called: allowed addresses only, signed, until confirmed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from node.errors import Forbidden, SettingsError
from node.mesh.callback import HEADER, Callbacks, allowed, is_prefix, secret_of, sign
from node.store.db import Database
from node.store.later import LaterStore
from node.store.outbox import OUTBOX, Outbox
from tests.store.test_later import WANTED
from tests.support.hubs import FakeHub, emptied, hub, until

SECRET = b"a-secret-of-the-caller"


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Outbox, LaterStore]]:
    database = Database(tmp_path / "outbox.db", "FULL", OUTBOX)
    await database.open()
    outbox = Outbox(database, 1 << 24, 1e6)
    yield outbox, LaterStore(database, outbox, 100)
    await database.close()


@asynccontextmanager
async def calling(outbox: Outbox, store: LaterStore) -> AsyncIterator[Callbacks]:
    callbacks = Callbacks(outbox, SECRET, store.address_of, rng=lambda: 0.0, least_pause_s=0.04)
    outbox.hurry = callbacks.hurry
    task = asyncio.create_task(callbacks.run())
    try:
        yield callbacks
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Caller(FakeHub):
    """Whoever is called back; `says` are the statuses of its answers, then 200."""

    def __init__(self, *says: int, confirms: str = "header") -> None:
        super().__init__()
        self.says, self.confirms = list(says), confirms
        self.got: list[tuple[str, bytes, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body, id = await request.read(), request.headers[HEADER]
        assert request.headers["Idempotency-Key"] == id
        self.got.append((id, body, request.headers["Outpost-Signature"]))
        status = self.says.pop(0) if self.says else 200
        if status >= 300 or self.confirms == "no":
            return web.Response(
                status=status, text="<html>log in</html>", headers={"Location": "http://elsewhere.example"}
            )
        if self.confirms == "header":
            return web.Response(status=status, headers={HEADER: id})
        return web.json_response({"received": id}, status=status)


async def finished(store: LaterStore, url: str) -> str:
    done = await store.keep(replace(WANTED, callback=f"{url}/hook"))
    assert await store.finish(done, 200, b'{"choices":[]}')
    return done.id


@pytest.mark.parametrize("confirms", ["header", "body"])
async def test_an_answer_is_delivered_once_it_is_confirmed(parts: tuple[Outbox, LaterStore], confirms: str) -> None:
    outbox, store = parts
    caller = Caller(500, 302, 404, 429, confirms=confirms)
    async with hub(caller) as url, calling(outbox, store) as callbacks:
        id = await finished(store, url)
        store.hurry()
        await emptied(outbox)
    assert [got[0] for got in caller.got] == [id] * 5
    _, body, signature = caller.got[-1]
    assert json.loads(body) == {"id": id, "status": 200, "response": {"choices": []}}
    seconds = signature.partition(",")[0].removeprefix("t=")
    expected = hmac.new(SECRET, f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    assert signature == f"t={seconds},v1={expected}" == sign(SECRET, int(seconds), body)
    assert (callbacks.delivered, callbacks.failures) == (1, 4)


async def test_a_captive_portal_confirms_nothing(parts: tuple[Outbox, LaterStore]) -> None:
    outbox, store = parts
    caller = Caller(confirms="no")
    async with hub(caller) as url, calling(outbox, store) as callbacks:
        await finished(store, url)
        await until(lambda: callbacks.failures >= 2)
        assert (await outbox.look())["waiting"] == 1
        caller.confirms = "header"
        await emptied(outbox)


async def test_who_is_gone_is_not_called_again(parts: tuple[Outbox, LaterStore]) -> None:
    outbox, store = parts
    caller = Caller(410)
    async with hub(caller) as url, calling(outbox, store) as callbacks:
        await finished(store, url)
        await emptied(outbox)
    assert (len(caller.got), callbacks.delivered) == (1, 0)


async def test_nobody_is_called_for_what_was_cancelled(parts: tuple[Outbox, LaterStore]) -> None:
    outbox, store = parts
    caller = Caller()
    async with hub(caller) as url:
        id = await finished(store, url)
        await store.cancel(id, b"me")
        assert (await outbox.look())["waiting"] == 0
        await finished(store, "http://127.0.0.1:1")  # nobody listens there
        second = await finished(store, url)
        async with calling(outbox, store):
            await until(lambda: bool(caller.got))
    assert [got[0] for got in caller.got] == [second]


@pytest.mark.parametrize(
    ("prefix", "address"),
    [
        ("https://a.example/", "https://a.example/hook"),
        ("https://a.example", "https://a.example/hook?x=1"),
        ("https://a.example/hooks", "https://a.example/hooks/7"),
        ("https://a.example/hooks/", "https://a.example/hooks"),
        ("https://A.example:443/", "https://a.EXAMPLE/x"),
        ("http://10.0.0.5:8000/in", "http://10.0.0.5:8000/in"),
    ],
)
def test_addresses_that_are_allowed(prefix: str, address: str) -> None:
    assert allowed(address, ("https://other.example/", prefix)) == address


@pytest.mark.parametrize(
    "address",
    [
        "https://a.example.evil.example/hooks/7",
        "https://a.example@evil.example/hooks/7",
        "https://evil.example/https://a.example/hooks",
        "https://a.example:8443/hooks/7",
        "http://a.example/hooks/7",
        "https://a.example/hooksandmore",
        "https://a.example/hooks/../admin",
        "https://a.example/hooks/%2E%2e/admin",
        "https://a.example/hooks/.%2e/admin",
        "https://a.example/hooks/x%2F..%2f..%2Fadmin",
        "https://a.example/hooks/..%5cadmin",
        "https://a.example\\@evil.example/hooks/7",
        "https://a.example/hooks/\n7",
        "https://a.exämple/hooks/7",
        "file:///etc/passwd",
        "//a.example/hooks",
        "https://[::1/hooks",
        "https://a.example:99999/hooks/7",
        "https://a.example/hooks/" + "x" * 3000,
        "",
    ],
)
def test_addresses_that_are_not(address: str) -> None:
    with pytest.raises(Forbidden):
        allowed(address, ("https://a.example/hooks",))
    with pytest.raises(Forbidden, match="nobody"):
        allowed(address, ())


def test_prefixes_and_secrets_are_checked(tmp_path: Path) -> None:
    assert is_prefix("https://a.example/x")
    assert not is_prefix("a.example")
    (tmp_path / "s").write_bytes(b"0123456789abcdef\n")
    assert secret_of(str(tmp_path / "s")) == b"0123456789abcdef"
    (tmp_path / "short").write_bytes(b"short")
    for name in ("short", "none"):
        with pytest.raises(SettingsError, match="callback_secret_file"):
            secret_of(str(tmp_path / name))
