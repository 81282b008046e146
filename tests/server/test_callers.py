"""Who asks and how urgently: every form in which it may be said, and that nothing readable is left of names."""

from __future__ import annotations

import hashlib
import math
from typing import Any, get_args, get_type_hints

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import settings
from node.admission.quota import Holder, Quotas
from node.errors import InvalidRequest
from node.generation import LEVELS, Asked, Level, Request
from node.server.callers import Asker, Asking, Callers, Wish, user_of, wish_in, wish_of
from tests.server.talk import talking
from tests.server.wire import chat, post, refused
from tests.support.service import scripted, serving

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
KEYS = ("first-key-0123456789", "second-key-0123456789")
REQUEST = Request("r", (1,), 1)


def callers(secret: bytes = b"s", **holders: Holder) -> Callers:
    return Callers(secret, Quotas({user_of(key): holder for key, holder in holders.items()}))


def asker(key: str = "", address: str = "10.0.0.1", **headers: str) -> Asker:
    return callers().asker(key, address, {name.replace("_", "-"): value for name, value in headers.items()})


def body(**fields: Any) -> Wish:
    return wish_of(msgspec.convert(fields, Asking))


def test_the_settings_know_the_same_levels() -> None:
    assert get_args(get_type_hints(settings.Queue)["default_level"]) == LEVELS == get_args(Level)


@pytest.mark.parametrize("level", LEVELS)
def test_levels_by_name(level: Level) -> None:
    assert body(priority=level).level == level
    assert wish_in({"Outpost-Priority": f" {level.upper()} "}).level == level


@pytest.mark.parametrize(
    ("tier", "level"), [("auto", None), ("default", None), ("priority", "interactive"), ("flex", "background")]
)
def test_openais_tiers(tier: str, level: Level | None) -> None:
    assert body(service_tier=tier).level == level
    assert body(service_tier=tier, priority="critical").level == "critical"


@pytest.mark.parametrize("wrong", ["urgent", "", "CRITICAL", 0, -1, True, ["critical"], {"a": 1}])
def test_an_unknown_level_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="critical, interactive, standard, background") as caught:
        body(priority=wrong)
    assert caught.value.param == "priority"


def test_how_often_it_was_passed_up_is_a_number() -> None:
    asked = Request("r", (1,), 1, asked=Asked(b"{}"))
    for sent, passed in (({}, 0), ({"Outpost_Passed": "2"}, 2)):
        stamped = asker(**sent).stamp(asked, Wish())
        assert stamped.asked == Asked(b"{}", passed=passed)
    for wrong in ("-1", "", "1e9", "9999", "x"):
        with pytest.raises(InvalidRequest):
            wish_in({"Outpost-Passed": wrong})


@pytest.mark.parametrize("wrong", ["urgent", "", "critical, standard"])
def test_so_in_a_header(wrong: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wish_in({"Outpost-Priority": wrong})
    assert caught.value.param == "Outpost-Priority"


@pytest.mark.parametrize("wrong", [-1, -0.001, 0, 1e9, math.inf, -math.inf, math.nan])
def test_an_absurd_time_to_live_is_refused_by_name(wrong: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body(ttl_s=wrong)
    assert caught.value.param == "ttl_s"
    with pytest.raises(InvalidRequest) as caught:
        wish_in({"Outpost-TTL": str(wrong)})
    assert caught.value.param == "Outpost-TTL"


@given(st.text())
def test_any_header_is_a_wish_or_a_refusal(text: str) -> None:
    for name in ("Outpost-Priority", "Outpost-TTL"):
        try:
            wish = wish_in({name: text})
        except InvalidRequest:
            continue
        assert wish.ttl_s is None or 0 < wish.ttl_s <= 7 * 86_400


def test_a_body_counts_before_the_headers_and_both_before_the_key() -> None:
    keys = callers(key=Holder("clinic", level="background"))
    plain, marked = keys.asker("key", "a", {}), keys.asker("key", "a", {"Outpost-Priority": "standard"})
    assert plain.stamp(REQUEST, Wish()).level == "background"
    assert marked.stamp(REQUEST, Wish()).level == "standard"
    assert marked.stamp(REQUEST, Wish("critical")).level == "critical"
    assert plain.stamp(REQUEST, Wish()).caller.tenant == "clinic"
    timed = keys.asker("key", "a", {"Outpost-TTL": "9"})
    assert timed.stamp(REQUEST, Wish()).ttl_s == 9
    assert timed.stamp(REQUEST, Wish(ttl_s=0.5)).ttl_s == 0.5


@pytest.mark.parametrize(
    ("asked", "given"), [("critical", "standard"), ("interactive", "standard"), ("background", "background")]
)
def test_what_asks_above_its_ceiling_runs_at_the_ceiling(asked: Level, given: Level) -> None:
    keys = callers(key=Holder(ceiling="standard", level="interactive"))
    assert keys.asker("key", "a", {}).stamp(REQUEST, Wish(asked)).level == given
    assert keys.asker("key", "a", {}).stamp(REQUEST, Wish()).level == "standard", "a default is under it, too"
    assert keys.asker("other", "a", {}).stamp(REQUEST, Wish(asked)).level == asked


def test_sessions_differ_by_name_else_by_address() -> None:
    def session(one: Asker, wish: Wish | None = None) -> str:
        return one.stamp(REQUEST, wish or Wish()).caller.session

    here, there = asker(), asker(address="10.0.0.2")
    assert session(here) != session(there)
    assert session(here) == session(asker())
    assert session(here, Wish(session="x")) == session(there, Wish(session="x"))
    assert session(here, Wish(session="x")) != session(asker("key"), Wish(session="x")), "names are a user's own"
    assert session(asker(Outpost_Session="x")) == session(here, Wish(session="x"))
    assert session(asker(Outpost_Session="x"), Wish(session="y")) == session(here, Wish(session="y"))
    assert session(here, Wish(session="10.0.0.1")) != session(here), "no name is an address"


@pytest.mark.parametrize("field", ["prompt_cache_key", "safety_identifier", "user"])
def test_openais_names_for_a_session(field: str) -> None:
    assert body(**{field: "n"}).session == "n"
    assert body(user="u", safety_identifier="s", prompt_cache_key="p").session == "p"


def test_nothing_readable_is_left_of_names_and_addresses() -> None:
    caller = asker("a-key-0123456789abc").stamp(REQUEST, Wish(session="ann@example.org")).caller
    for private in ("ann", "a-key", "10.0.0.1"):
        assert private not in str(caller)
    other = callers(b"another life").asker("", "10.0.0.1", {}).stamp(REQUEST, Wish())
    assert other.caller.session != asker().stamp(REQUEST, Wish()).caller.session, "nor can an address be looked up"
    assert user_of("") == ""
    assert user_of("k") == hashlib.sha256(b"k").hexdigest(), "as the quota file has it"


async def test_over_http() -> None:
    service, source = scripted()
    async with serving(service, api_keys=KEYS) as url:
        for key in KEYS:
            headers = {"Authorization": f"Bearer {key}", "Outpost-Priority": "interactive", "Outpost-Session": "kiosk"}
            for path, fields in ((CHAT, chat()), (CHAT, chat(stream=True)), (TEXT, {"prompt": "x"})):
                status, _, answered = await post(url + path, {**fields, "ttl_s": 60}, headers)
                assert (status, answered["Outpost-Priority"]) == (200, "interactive")
            status, _, answered = await post(url + EMBED, {"input": ["a", "b"], "priority": "background"}, headers)
            assert (status, answered["Outpost-Priority"]) == (200, "background")
    assert [request.level for request in source.submitted] == ["interactive"] * 3 + ["background"] * 2 + [
        "interactive"
    ] * 3 + ["background"] * 2
    assert [request.ttl_s for request in source.submitted[:4]] == [60, 60, 60, None]
    assert [request.caller.user for request in source.submitted] == [user_of(key) for key in KEYS for _ in range(5)]
    assert len({request.caller.session for request in source.submitted}) == 2


async def test_without_keys_a_credential_says_nothing() -> None:
    service, source = scripted()
    async with serving(service) as url:
        await post(url + CHAT, chat(), {"Authorization": "Bearer none"})
        await post(url + CHAT, chat())
    first, second = source.submitted
    assert first.caller == second.caller
    assert first.caller.user == ""
    assert (first.level, first.ttl_s) == ("standard", None)


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED])
@pytest.mark.parametrize(
    ("fields", "param"), [({"priority": "urgent"}, "priority"), ({"ttl_s": -1}, "ttl_s"), ({"user": 3}, "user")]
)
async def test_a_wrong_field_is_a_400_that_names_it(path: str, fields: dict[str, Any], param: str) -> None:
    service, source = scripted()
    required = {CHAT: chat(), TEXT: {"prompt": "x"}, EMBED: {"input": "x"}}[path]
    async with serving(service) as url:
        status, error = await refused(url, {**required, **fields}, path)
        assert (status, error["param"]) == (400, param)
        status, _, _ = await post(url + path, required, {"Outpost-TTL": "soon"})
        assert status == 400
    assert source.submitted == []


async def test_over_a_websocket() -> None:
    service, source = scripted()
    headers = {"Outpost-Session": "kiosk", "Outpost-Priority": "background"}
    async with serving(service) as url:
        async with talking(url, headers=headers) as talk:
            await talk.ask("a")
            assert (await talk.until("accepted", "a"))["priority"] == "background"
            await talk.ask("b", priority="critical", ttl_s=2)
            assert (await talk.until("accepted", "b"))["priority"] == "critical"
            await talk.ask("c", priority="urgent")
            refusal = await talk.end("c")
            assert (refusal["status"], refusal["error"]["param"]) == (400, "priority")
        await post(url + CHAT, chat(), {"Outpost-Session": "kiosk"})
    a, b, c = source.submitted
    assert a.caller == b.caller == c.caller
    assert (b.level, b.ttl_s) == ("critical", 2)


async def test_a_handshake_with_a_wrong_level_is_refused() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with talking(url, headers={"Outpost-Priority": "urgent"}):
                pass
        assert caught.value.status == 400
