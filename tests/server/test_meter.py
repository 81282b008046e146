"""What /metrics counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from node.errors import EngineFailed, Overloaded
from node.generation import Finished, Load
from node.server.meter import Meter
from tests.server.wire import chat, open_post, post, until
from tests.support.service import scripted, serving

PATH = "/v1/chat/completions"
STATUSES = (200, 400, 429, 500, 499)


@dataclass(eq=False)
class Connected:
    """A connection and its pacer in one."""

    unread: int
    lags: bool

    @property
    def pacer(self) -> Connected:
        return self


def lines(meter: Meter) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in meter.exposition().decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


async def scrape(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        rows = (line.rpartition(" ") for line in (await response.text()).splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}


def test_figures_by_name() -> None:
    service, _ = scripted()
    meter = Meter(service)
    meter.request(200)
    meter.request(200)
    meter.request(429)
    meter.generation(Finished("stop", 10, 3))
    meter.first_text(0.3)
    meter.gap(0.03)
    figures = lines(meter)
    assert figures['llm_request_count{model="scripted",status="200"}'] == 2
    assert figures['llm_request_count{model="scripted",status="429"}'] == 1
    assert figures['llm_token_total{model="scripted",role="prompt"}'] == 10
    assert figures['llm_token_total{model="scripted",role="completion"}'] == 3
    assert figures['llm_ttft_seconds_bucket{le="0.2",model="scripted"}'] == 0
    assert figures['llm_ttft_seconds_bucket{le="0.5",model="scripted"}'] == 1
    assert figures['llm_inter_token_seconds_count{model="scripted"}'] == 1
    assert figures["llm_requests_running"] == 1
    assert figures["llm_requests_waiting"] == 2
    assert figures["llm_kv_cells_used"] == 30
    assert figures["llm_kv_cells"] == 400
    assert figures["llm_threads"] == 3
    assert figures['llm_draft_tokens_total{outcome="accepted"}'] == 7
    assert figures['llm_draft_tokens_total{outcome="rejected"}'] == 5
    assert figures["llm_warm_hits_total"] / figures["llm_warm_requests_total"] == 0.75
    assert figures["llm_warm_cached_tokens_total"] / figures["llm_warm_prompt_tokens_total"] == 0.9
    assert figures["llm_warm_saved_seconds"] == 2.5
    assert figures['llm_warm_bytes{place="disk"}'] == 7 << 20
    assert figures["llm_warm_evictions_total"] == 2


def test_readers_and_memory() -> None:
    service, _ = scripted()
    meter = Meter(service)
    assert lines(meter)["llm_readers"] == 0
    assert "llm_memory_free_bytes" not in lines(meter)
    meter.wires.add(Connected(unread=300, lags=True))  # nobody else holds it: it is gone
    first, second = Connected(unread=300, lags=True), Connected(unread=20, lags=False)
    meter.wires.update((first, second))
    meter.round_trip(0.02)
    meter.held(True)
    meter.held(False)
    figures = lines(meter)
    assert (figures["llm_readers"], figures["llm_readers_lagging"], figures["llm_reader_unread_bytes"]) == (2, 1, 320)
    assert figures['llm_reader_rtt_seconds_count{model="scripted"}'] == 1
    assert figures['llm_generation_holds_total{model="scripted"}'] == 1


def test_free_memory_is_read_once_a_second() -> None:
    service, _ = scripted()
    meter = Meter(service)
    assert meter.memory_free(10.0) is None
    service.load = lambda: Load(1, 2, 30, 400, memory_free=5)  # type: ignore[method-assign]
    assert meter.memory_free(10.9) is None
    assert meter.memory_free(11.0) == 5
    assert lines(meter)["llm_memory_free_bytes"] == 5


def test_two_applications_do_not_mix() -> None:
    first, second = Meter(scripted()[0]), Meter(scripted()[0])
    first.request(200)
    assert 'llm_request_count{model="scripted",status="200"}' not in lines(second)


async def test_requests_count_by_how_they_ended() -> None:
    gate = asyncio.Event()
    service, source = scripted()
    async with serving(service) as url:
        await post(url + PATH, chat(stream=True))
        await post(url + PATH, chat())
        await post(url + PATH, b"{")
        source.refusal = Overloaded("Full.")
        await post(url + PATH, chat())
        source.refusal = None
        source.script = ("a", EngineFailed("Broke."))
        await post(url + PATH, chat(stream=True))
        source.script = ("a", gate)
        _, writer = await open_post(url, PATH, chat(stream=True))
        await until(lambda: source.busy == 1)
        writer.close()
        await until(lambda: source.busy == 0)
        left = 'llm_request_count{model="scripted",status="499"}'
        for _ in range(1000):  # who has left is counted when its handler has ended, a moment later
            if left in (figures := await scrape(url)):
                break
    counted = {status: figures[f'llm_request_count{{model="scripted",status="{status}"}}'] for status in STATUSES}
    assert counted == {200: 2, 400: 1, 429: 1, 500: 1, 499: 1}
    assert figures['llm_ttft_seconds_count{model="scripted"}'] >= 2
    assert figures['llm_inter_token_seconds_count{model="scripted"}'] >= 1
