"""What is counted: requests, tokens, time to first token and the gaps between writes, in Prometheus' terms.

Each application has its own registry, so that two nodes in one process do not mix. Gauges are read from the service
when somebody looks, never kept.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Literal

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.generation import Finished, Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499  # nginx's number for it; no response carries it

_TTFT_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_GAP_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1, 2, 5)


class Meter:
    """One application's figures."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = prometheus.CollectorRegistry()
        self._requests: Tally[tuple[str, str]] = Tally()
        self._tokens = prometheus.Counter(
            "llm_token_total", "Tokens read and written", ("model", "role"), registry=self._registry
        )
        model = service.model.info.id
        self._first = self._histogram("llm_ttft_seconds", "Time from request to first text", _TTFT_S).labels(model)
        self._gap = self._histogram("llm_inter_token_seconds", "Time between writes of text", _GAP_S).labels(model)
        self._registry.register(_Live(service, self._requests))

    def request(self, status: int) -> None:
        """A request for the model ended."""
        self._requests[self._service.model.info.id, str(status)] += 1

    def generation(self, end: Finished) -> None:
        """A generation ended."""
        self.tokens("prompt", end.prompt_tokens)
        self.tokens("completion", end.completion_tokens)

    def tokens(self, role: Literal["prompt", "completion"], count: int) -> None:
        """`count` tokens went through."""
        self._tokens.labels(self._service.model.info.id, role).inc(count)

    def first_text(self, seconds: float) -> None:
        """The first text of a stream went out."""
        self._first.observe(seconds)

    def gap(self, seconds: float) -> None:
        """More text went out, `seconds` after the last."""
        self._gap.observe(seconds)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return prometheus.generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> prometheus.Histogram:
        return prometheus.Histogram(name, text, ("model",), buckets=buckets, registry=self._registry)


class _Live(Collector):
    """What is known at the moment of looking."""

    def __init__(self, service: Service, requests: Tally[tuple[str, str]]) -> None:
        self._service = service
        self._requests = requests

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
