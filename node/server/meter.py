"""What is counted: requests, tokens, time to first token and the gaps between writes, in Prometheus' terms.

Each application has its own registry, so that two nodes in one process do not mix. Gauges are read from the service
when somebody looks, never kept.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Literal, Protocol
from weakref import WeakSet

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.generation import Finished, Service, Warmth

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499  # nginx's number for it; no response carries it

_TTFT_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_TRIP_S = (0.001, 0.005, 0.01, 0.03, 0.08, 0.15, 0.3, 0.8, 2, 5)
_MEMORY_S = 1.0  # how old a reading of the free memory may be
_GAP_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1, 2, 5)


class Backlog(Protocol):
    """What a connection's pacer says."""

    unread: int
    lags: bool


class Connection(Protocol):
    """A connection that streams are written to."""

    @property
    def pacer(self) -> Backlog: ...


class Meter:
    """One application's figures. `wires` are the connections with a stream on them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = prometheus.CollectorRegistry()
        self._requests: Tally[tuple[str, str]] = Tally()
        self._tokens = prometheus.Counter(
            "llm_token_total", "Tokens read and written", ("model", "role"), registry=self._registry
        )
        self._first = self._histogram("llm_ttft_seconds", "Time from request to first text", _TTFT_S)
        self._gap = self._histogram("llm_inter_token_seconds", "Time between writes of text", _GAP_S)
        self._trip = self._histogram("llm_reader_rtt_seconds", "Round trip to readers", _TRIP_S)
        self._holds = prometheus.Counter(
            "llm_generation_holds", "Generations held for their readers", ("model",), registry=self._registry
        )
        self._recalled = prometheus.Counter(
            "llm_answers_recalled", "Recent answers that were given again", ("model",), registry=self._registry
        )
        self._model: str | None = None
        self._label()
        self.wires: WeakSet[Connection] = WeakSet()
        self._memory: tuple[float, int | None] = (-_MEMORY_S, None)
        self._registry.register(_Live(service, self._requests, self.wires))

    def request(self, status: int) -> None:
        """A request for the model ended."""
        self._requests[self._label(), str(status)] += 1

    def generation(self, end: Finished) -> None:
        """A generation ended."""
        self.tokens("prompt", end.prompt_tokens)
        self.tokens("completion", end.completion_tokens)

    def tokens(self, role: Literal["prompt", "completion"], count: int) -> None:
        """`count` tokens went through."""
        self._tokens.labels(self._label(), role).inc(count)

    def first_text(self, seconds: float) -> None:
        """The first text of a stream went out."""
        self._first.labels(self._label()).observe(seconds)

    def gap(self, seconds: float) -> None:
        """More text went out, `seconds` after the last."""
        self._label()
        self._gaps.observe(seconds)  # for each piece of text: looking it up would cost as much again

    def add(self, collector: Collector) -> None:
        """Show what `collector` knows, too."""
        self._registry.register(collector)

    def round_trip(self, seconds: float) -> None:
        """A reader's round trip was measured."""
        self._trip.labels(self._label()).observe(seconds)

    def held(self, held: bool) -> None:
        """A generation was held because its reader lags, or goes on."""
        if held:
            self._holds.labels(self._label()).inc()

    def recalled(self) -> None:
        """A recent answer was given again."""
        self._recalled.labels(self._label()).inc()

    def memory_free(self, now: float) -> int | None:
        """Bytes of memory that this machine has left, as of a second ago at most; None where unknown."""
        if now - self._memory[0] >= _MEMORY_S:
            self._memory = now, self._service.load().memory_free
        return self._memory[1]

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        self._label()
        return prometheus.generate_latest(self._registry)

    def _label(self) -> str:
        """The model that is served now; a model's figures are there, at zero, from its first moment on."""
        model = self._service.model.info.id
        if model != self._model:
            self._model = model
            for figure in (self._first, self._gap, self._trip, self._holds, self._recalled):
                figure.labels(model)
            self._gaps = self._gap.labels(model)
        return model

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> prometheus.Histogram:
        return prometheus.Histogram(name, text, ("model",), buckets=buckets, registry=self._registry)


class _Live(Collector):
    """What is known at the moment of looking."""

    def __init__(self, service: Service, requests: Tally[tuple[str, str]], wires: WeakSet[Connection]) -> None:
        self._service = service
        self._requests = requests
        self._wires = wires

    def collect(self) -> Iterator[Metric]:
        # The library's Counter would rename this one to llm_request_count_total.
        counted = Metric("llm_request_count", "Requests for the model, by HTTP status", "unknown")
        for (model, status), count in self._requests.items():
            counted.add_sample(counted.name, {"model": model, "status": status}, count)
        yield counted
        load = self._service.load()
        yield GaugeMetricFamily("llm_requests_running", "Requests that hold a slot", load.running)
        yield GaugeMetricFamily("llm_requests_waiting", "Requests in the queue", load.waiting)
        yield GaugeMetricFamily("llm_kv_cells_used", "KV cache cells that hold tokens", load.kv_used)
        yield GaugeMetricFamily("llm_kv_cells", "KV cache cells", load.kv_total)
        yield GaugeMetricFamily("llm_threads", "CPU threads that decode; fewer while others want them", load.threads)
        drafts = CounterMetricFamily("llm_draft_tokens", "Tokens guessed and checked", labels=("outcome",))
        drafts.add_metric(("accepted",), load.accepted)
        drafts.add_metric(("rejected",), load.drafted - load.accepted)
        yield drafts
        if load.memory_free is not None:
            yield GaugeMetricFamily("llm_memory_free_bytes", "Memory that this machine has left", load.memory_free)
        yield from _warmth(self._service.warmth())
        pacers = [wire.pacer for wire in self._wires]
        lagging = sum(pacer.lags for pacer in pacers)
        yield GaugeMetricFamily("llm_readers", "Connections with a stream on them", len(pacers))
        yield GaugeMetricFamily("llm_readers_lagging", "Those whose reader lags", lagging)
        unread = sum(pacer.unread for pacer in pacers)
        yield GaugeMetricFamily("llm_reader_unread_bytes", "Written to readers, but not taken by them", unread)


def _warmth(warmth: Warmth) -> Iterator[Metric]:
    """Hit ratios are llm_warm_hits_total over llm_warm_requests_total, and the same of tokens."""
    counted: list[tuple[str, str, float]] = [
        ("llm_warm_requests", "Prompts that could begin with a warm prefix", warmth.requests),
        ("llm_warm_hits", "Prompts that did", warmth.hits),
        ("llm_warm_prompt_tokens", "Their tokens", warmth.prompt_tokens),
        ("llm_warm_cached_tokens", "Those of them that were not read", warmth.cached_tokens),
        ("llm_warm_evictions", "Blocks of states that memory had no room for", warmth.evictions),
        ("llm_warm_loads", "State files read", warmth.loads),
        ("llm_warm_saves", "State files written", warmth.saves),
    ]
    for name, text, value in counted:
        yield CounterMetricFamily(name, text, value)
    yield GaugeMetricFamily("llm_warm_saved_seconds", "Reading that was saved, less what loading took", warmth.saved_s)
    sizes = GaugeMetricFamily("llm_warm_bytes", "What states of prefixes take", labels=["place"])
    sizes.add_metric(["memory"], warmth.memory_bytes)
    sizes.add_metric(["disk"], warmth.disk_bytes)
    yield sizes
