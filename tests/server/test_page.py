"""The page's headers, and the page itself in a real Chromium against a node that answers by script."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from node.server.page import FILES
from tests.support.page_node import ScriptedNode
from tests.support.page_visit import chromium, visit

if TYPE_CHECKING:
    from playwright.async_api import Browser


# Without a browser


@pytest_asyncio.fixture
async def client() -> AsyncIterator[TestClient[web.Request, web.Application]]:
    async with TestClient(TestServer(ScriptedNode().app)) as client:
        yield client


@pytest.mark.parametrize("name", FILES)
async def test_files_have_their_type_and_a_strict_policy(
    client: TestClient[web.Request, web.Application], name: str
) -> None:
    path = "/" if name == "index.html" else f"/page/{name}"
    async with client.get(path) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == FILES[name]
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        policy = response.headers["Content-Security-Policy"]
        tag, body = response.headers["ETag"], await response.read()
    for rule in ("default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    async with client.head(path) as response:
        assert (response.status, response.content_length, await response.read()) == (200, len(body), b"")
    for known in (tag, f'"other", W/{tag}', "*"):
        async with client.get(path, headers={"If-None-Match": known}) as response:
            assert (response.status, await response.read()) == (304, b"")
            assert response.headers["ETag"] == tag
    async with client.get(path, headers={"If-None-Match": '"other"'}) as response:
        assert (response.status, await response.read()) == (200, body)


@pytest.mark.parametrize(
    "path", ["/page/", "/page/page.py", "/page/../page.py", "/page/%2e%2e/page.py", "/page/index.html"]
)
async def test_nothing_outside_the_table_is_served(client: TestClient[web.Request, web.Application], path: str) -> None:
    async with client.get(path) as response:
        assert response.status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_only_get_and_head_are_allowed(client: TestClient[web.Request, web.Application], method: str) -> None:
    for path in ("/", "/page/app.js"):
        async with client.request(method, path) as response:
            assert response.status == 405
            assert set(response.headers["Allow"].split(",")) == {"GET", "HEAD"}


async def test_the_page_is_small_and_needs_nothing_from_elsewhere(
    client: TestClient[web.Request, web.Application],
) -> None:
    total = 0
    for name in FILES:
        async with client.get("/" if name == "index.html" else f"/page/{name}") as response:
            text = await response.text()
        total += len(text.encode())
        addresses = set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses
        assert "innerHTML" not in text
    assert (
        total < 58 * 1024
    )  # 8 of them for answers that survive their connection and their page, 8 for the neighbourhood


# In a browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="module")
class TestInChromium:
    async def test_text_streams_in_and_its_speed_is_shown(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.sees("#model", "scripted-1b")
            await v.sees("#state", "Ready")
            await v.ask("hold")
            await v.sees(".answer.live .piece", "the beginning")
            await v.sees(".ttft", re.compile(r"^\d+ m?s$"))
            assert "the end" not in await v.text(".answer")
            await asyncio.sleep(0.15)
            v.node.proceed.set()
            await v.done()
            assert await v.text(".answer p") == "the beginning the end"
            await v.sees(".rate", re.compile(r"^\d+(\.\d)? tokens/s$"))
            await v.sees(".count", "3 tokens")
            assert await v.page.locator("#announcer").inner_text() == "the beginning the end"
            assert v.node.requests[0]["stream_options"] == {"include_usage": True}
            assert v.node.requests[0]["model"] == "scripted-1b"

    async def test_history_is_sent_and_a_new_conversation_forgets_it(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("one")
            await v.done()
            await v.ask("two")
            await v.done()
            roles = [message["role"] for message in v.node.requests[1]["messages"]]
            assert roles == ["user", "assistant", "user"]
            await v.page.click("#new")
            assert await v.page.locator(".turn").count() == 0
            assert await v.page.locator("#welcome").is_visible()
            await v.page.click(".starters button >> nth=0")
            await v.done()
            assert len(v.node.requests[2]["messages"]) == 1

    async def test_stop_keeps_the_partial_answer_and_frees_the_node(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("forever")
            await v.sees(".answer", "word5")
            await asyncio.sleep(0.45)  # beyond the guard against a double tap
            await v.page.click("#go")
            await v.done()
            await asyncio.wait_for(v.node.gone.wait(), 30)
            kept = await v.text(".answer")
            assert kept.startswith("word0 word1")
            await v.sees(".notice", "Stopped")
            await v.ask("next")
            await v.done()
            assert v.node.requests[1]["messages"][1]["content"].strip() == kept.strip()

    async def test_everything_works_from_the_keyboard(self, browser: Browser) -> None:
        async with visit(browser) as v:
            keys = v.page.keyboard
            await v.page.locator("#log").focus()
            await keys.press("/")
            await keys.type("forever")
            await keys.press("Shift+Enter")
            await keys.type("and more")
            assert await v.page.input_value("#input") == "forever\nand more"
            await keys.press("Backspace")
            await v.page.fill("#input", "forever now")
            await keys.press("Enter")
            await v.sees(".answer", "word2")
            await keys.type("a/b")  # the next question may be written meanwhile, but is not sent
            await keys.press("Enter")
            assert await v.page.input_value("#input") == "a/b"
            await keys.press("Escape")
            await v.sees(".notice", "Stopped")
            await keys.press("Enter")
            await v.done()
            await v.sees(".answer", "You said: a/b")
            seen = []
            for _ in range(5):
                await keys.press("Tab")
                seen.append(await v.page.evaluate("document.activeElement.id"))
            assert {"go", "new", "log"} <= set(seen)
            await v.page.locator("#new").focus()
            outline = await v.page.evaluate("getComputedStyle(document.querySelector('#new')).outlineStyle")
            assert outline == "solid"
            await keys.press("Enter")
            assert await v.page.evaluate("document.activeElement.id") == "input"

    async def test_a_double_tap_on_send_does_not_stop(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.page.fill("#input", "hold")
            await v.page.dblclick("#go")
            await v.sees(".answer", "the beginning")
            v.node.proceed.set()
            await v.done()
            assert "the end" in await v.text(".answer")

    async def test_what_the_model_writes_never_runs(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("evil")
            await v.done()
            answer = v.page.locator(".answer")
            assert "<script>window.ran = 1</script> <img src=x onerror=" in await answer.inner_text()
            assert await answer.locator("strong").inner_text() == "<b onclick=x>bold</b>"
            assert await answer.locator("script, img, b, i").count() == 0
            assert await v.page.evaluate("window.ran") is None

    async def test_a_finished_answer_is_rendered(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("markdown")
            await v.done()
            shape = await v.page.evaluate(
                """() => {
                    const walk = (e) => e.tagName + (e.children.length ? `(${[...e.children].map(walk)})` : "");
                    return walk(document.querySelector(".answer"));
                }"""
            )
            assert shape == "DIV(H3,P(STRONG,CODE),OL(LI,LI(UL(LI,LI(STRONG)))),UL(LI),PRE(CODE),P)"
            assert await v.page.locator("pre code").text_content() == 'print("<b>")\n\nx = 1'

    async def test_split_characters_arrive_whole(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("emoji")
            await v.done()
            assert await v.text(".answer") == "a 🛰️ b é"

    async def test_an_error_inside_the_stream_keeps_the_text(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("broken")
            await v.sees(".notice", "The engine broke. The answer is kept")
            assert await v.text(".answer") == "half an answer"
            await v.page.click(".notice button")
            await v.sees(".notice", "The engine broke")
            assert await v.page.locator(".turn").count() == 1
            assert len(v.node.requests) == 2

    async def test_a_lost_connection_keeps_question_and_text(self, browser: Browser) -> None:
        async with visit(browser, refusals=True) as v:
            await v.ask("cut")
            await v.sees(".notice", "The connection was lost.")
            assert await v.text(".answer") == "half an answer"
            await v.page.click("#new")
            v.node.failing = 9  # Chromium repeats a request by itself when a kept connection turns out dead
            await v.ask("hello there")
            await v.sees(".notice", "cannot be reached")
            assert await v.text(".question") == "hello there"
            v.node.failing = 0
            await v.page.click(".notice button")
            await v.sees(".answer", "You said: hello there")
            await v.done()
            assert await v.page.locator(".notice").count() == 0

    async def test_a_busy_node_is_asked_again_once(self, browser: Browser) -> None:
        async with visit(browser, refusals=True) as v:
            v.node.busy = 1
            await v.ask("busy please")
            await v.sees(".countdown", "1 s")
            await v.sees(".answer", "You said: busy please")
            await v.done()
            v.node.busy = 9
            await v.ask("busy again")
            await v.sees(".notice", "The node is still busy.")
            assert len(v.node.requests) == 4
            v.node.busy = 0
            await v.page.click(".notice button")
            await v.sees(".answer", "You said: busy again")

    async def test_a_key_is_asked_for_and_remembered(self, browser: Browser) -> None:
        node = ScriptedNode()
        node.key = "a-long-enough-key"
        async with visit(browser, node=node, refusals=True) as v:
            await v.sees("#door", "This node asks for a key.")
            await v.ask("hello")
            await v.sees(".turn .notice", "This node asks for a key.")
            assert await v.page.evaluate("document.activeElement.type") == "password"
            await v.page.keyboard.type("wrong")
            await v.page.keyboard.press("Enter")
            await v.sees(".turn .notice", "did not accept this key")
            await v.page.keyboard.type(node.key)
            await v.page.keyboard.press("Enter")
            await v.sees(".answer", "You said: hello")
            await v.sees("#model", "scripted-1b")
            await v.page.reload()
            await v.sees("#model", "scripted-1b")
            assert await v.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]

    async def test_other_refusals_say_what_to_do(self, browser: Browser) -> None:
        async with visit(browser, refusals=True) as v:
            await v.ask("draining")
            await v.sees(".notice", "The node is not ready.")
            await v.ask("refused")
            await v.sees(".notice", "`messages` is wrong. Change it")
            await v.page.click("text=Edit the question")
            assert await v.page.input_value("#input") == "refused"
            await v.ask("first")
            await v.done()
            await v.ask("long story")
            await v.sees(".notice", "This conversation is too long")
            await v.page.click(".notice button")
            assert await v.page.input_value("#input") == "long story"
            assert await v.page.locator(".turn").count() == 0
            await v.page.keyboard.press("Enter")
            await v.sees(".answer", "You said: long story")
            assert [len(request["messages"]) for request in v.node.requests] == [1, 1, 1, 3, 1]

    async def test_empty_and_cut_answers_are_named(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("quiet")
            await v.sees(".notice", "nothing to say")
            await v.ask("endless")
            await v.sees(".notice", "length limit")
            await v.page.click("text=Continue")
            await v.sees(".question", "Continue.")
            await v.done()
            assert [message["role"] for message in v.node.requests[2]["messages"]] == ["user", "assistant", "user"]

    async def test_a_starting_node_becomes_ready(self, browser: Browser) -> None:
        node = ScriptedNode()
        node.ready = False
        async with visit(browser, node=node, refusals=True) as v:
            await v.sees("#state", "Starting")
            node.ready = True
            await v.page.evaluate("dispatchEvent(new Event('online'))")
            await v.sees("#state", "Ready")
            await v.sees("#model", "scripted-1b")

    async def test_the_view_follows_only_a_reader_at_the_end(self, browser: Browser) -> None:
        async with visit(browser) as v:
            log = "document.querySelector('#log')"
            gap = f"{log}.scrollHeight - {log}.clientHeight - {log}.scrollTop"
            await v.ask("many")
            await v.sees(".answer", "line 210")
            assert await v.page.evaluate(gap) < 30
            assert await v.page.locator(".piece").count() > 1
            await v.page.mouse.move(450, 300)
            await v.page.mouse.wheel(0, -600)
            await v.sees("#latest", "Latest")
            top = await v.page.evaluate(f"{log}.scrollTop")
            await v.sees(".answer", "line 300")
            assert abs(await v.page.evaluate(f"{log}.scrollTop") - top) < 700
            assert await v.page.evaluate(gap) > 400
            await v.page.click("#latest")
            assert await v.page.evaluate(gap) < 30
            await v.done()
            assert await v.page.evaluate(gap) < 30
            assert (await v.text(".answer")).endswith("line 399")

    async def test_light_and_dark_differ_and_motion_can_be_off(self, browser: Browser) -> None:
        grounds = set()
        for scheme in ("light", "dark"):
            async with visit(browser, color_scheme=scheme, reduced_motion="reduce") as v:
                ground, ink, motion = await v.page.evaluate(
                    """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
                              getComputedStyle(document.querySelector('.waves path')).animationName]"""
                )
                assert ground != ink
                assert motion == "none"
                grounds.add(ground)
        assert len(grounds) == 2

    async def test_the_neighbourhood_is_shown_as_it_is(self, browser: Browser) -> None:
        node = ScriptedNode()
        node.around = {
            "node": {"state": "ready", "version": "0.1.0", "uptime_s": 7384.2},
            "queue": {"slots": 8},
            "mesh": {"state": "open", "neighbours": {"a1b2": {"model": "<b>m</b>", "state": "alive", "rtt_s": 0.0124}}},
            "routes": {"decided": {"local": {"idle": 4}, "peer": {"faster": 1}}, "failovers": {}, "upstreams": {}},
            "links": {"open": 2, "loss_worst": 0.0312, "rtt_worst_ms": 48.1},
            "outbox": {"waiting": 1234, "oldest_s": 5400.0, "used_bytes": 2_500_000},
            "hub": {"state": "unreachable", "reason": "it says nothing", "retry_in_s": 93.0},
            "fleet": {"nodes": {"f00d": {"seen_s": 90000, "state": None}}},
        }
        async with visit(browser, node=node) as v:
            await v.sees("#state", "Ready")
            await v.page.clock.install()
            await v.page.click("#show-around")
            await v.sees("#around", "Around this node")
            await v.sees("#around section >> nth=0", "This node")
            titles = await v.page.locator("#around h3").all_inner_texts()
            assert titles == [
                *("This node", "Neighbours", "Who answers", "Links", "Outbox", "Hub", "Nodes of the fleet"),
            ]
            text = await v.page.locator("#around").inner_text()
            for told in ("12 ms", "<b>m</b>", "1,234", "2.5 MB", "90 min", "0.03", "it says nothing", "93 s", "25 h"):
                assert told in text, told
            assert await v.page.locator("#around b").count() == 0
            heads = await v.page.locator("#around section:nth-of-type(2) th").all_inner_texts()
            assert heads == ["neighbours", "model", "state", "rtt", "a1b2"]
            node.around["outbox"]["waiting"] = 7
            await v.page.clock.fast_forward(10_000)
            await v.page.locator("#around dd >> text=/^7$/").wait_for(timeout=20_000)

    async def test_the_neighbourhood_opens_and_closes_from_the_keyboard(self, browser: Browser) -> None:
        async with visit(browser) as v:
            await v.ask("forever")
            await v.sees(".answer", "word2")
            await v.page.locator("#show-around").focus()
            await v.page.keyboard.press("Enter")
            await v.page.locator("#around[open]").wait_for(timeout=5000)
            assert await v.page.evaluate("document.querySelector('#around').contains(document.activeElement)")
            await v.page.keyboard.press("/")
            await v.page.keyboard.press("Escape")
            assert await v.page.locator("#around[open]").count() == 0
            assert await v.page.evaluate("document.activeElement.id") == "show-around"
            assert await v.page.locator("body:has(.busy)").count() == 1, "the answer goes on"
            await v.page.keyboard.press("Escape")
            await v.sees(".notice", "Stopped")

    async def test_the_neighbourhood_of_a_node_that_refuses_or_is_gone(self, browser: Browser) -> None:
        node = ScriptedNode()
        node.key = "a-long-enough-key"
        async with visit(browser, node=node, refusals=True) as v:
            await v.page.click("#show-around")
            await v.sees("#around", "asks for a key")
            await v.page.click("#around button")
            assert await v.page.locator("#around[open]").count() == 0

    async def test_the_neighbourhood_fits_a_small_screen(self, browser: Browser) -> None:
        node = ScriptedNode()
        node.around = {"mesh": {"neighbours": {"n" * 32: {f"column_{n}": "x" * 30 for n in range(12)}}}}
        async with visit(browser, node=node, viewport={"width": 320, "height": 568}, has_touch=True) as v:
            await v.page.click("#show-around")
            await v.sees("#around h3", "Neighbours")
            await v.fits(320)

    @pytest.mark.parametrize(("width", "height"), [(320, 568), (1080, 1920), (3840, 2160)])
    async def test_it_fits_every_screen_and_every_finger(self, browser: Browser, width: int, height: int) -> None:
        async with visit(browser, viewport={"width": width, "height": height}, has_touch=True) as v:
            await v.sees("#model", "scripted")
            await v.fits(width)
            await v.ask("x" * 400)
            await v.done()
            await v.ask("markdown")
            await v.done()
            await v.fits(width)
            await v.ask("broken")
            await v.sees(".notice", "broke")
            await v.fits(width)

    async def test_the_sse_parser_takes_any_split(self, browser: Browser) -> None:
        stream = (
            "\ufeff: ka\n: ka\r\ndata: plain\n\ndata:tight\r\n\r\ndata: two\rdata: lines\r\r"
            "event: x\nid: 7\nretry: 5\n\n"
            'data:  spaced 🛰️é漢\n\n\n\ndata\n\n: data: no\ndata: {"a":"b:c"}\n\ndata: [DONE]\n\ndata: never ended\n'
        )
        expected = ["plain", "tight", "two\nlines", " spaced 🛰️é漢", "", '{"a":"b:c"}', "[DONE]"]
        async with visit(browser) as v:
            results = await v.page.evaluate(
                """async (text) => {
                    const { SseParser } = await import(new URL("page/sse.js", document.baseURI));
                    const bytes = new TextEncoder().encode(text);
                    const feed = (size) => {
                        const parser = new SseParser(), out = [];
                        for (let at = 0; at < bytes.length; at += size)
                            out.push(...parser.push(bytes.slice(at, at + size)));
                        return out;
                    };
                    const early = new SseParser().push(new TextEncoder().encode("data: now\\r\\n\\r"));
                    return [[1, 2, 3, 5, 7, 64, 10000].map(feed), early];
                }""",
                stream,
            )
        assert results[0] == [expected] * 7
        assert results[1] == ["now"]
