"""What the node's parts say of themselves, in Prometheus' terms: queue, limits, ladder, who answers, what waits.

Read from the service's status when somebody looks; a part that is not there has no figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.admission.ladder import RUNGS
from node.generation import Service
from node.store.backlog import PRIORITIES

_FATES = ("admitted", "refused", "expired", "parked")


class Gauges(Collector):
    """One service's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """All figures of the parts that are there."""
        status = self._service.status()
        if queue := status.get("queue"):
            yield from _queue(queue)
        if load := status.get("load"):
            yield from _load(load)
        if routes := status.get("routes"):
            yield from _routes(routes)
        if limits := status.get("limits"):
            decisions = CounterMetricFamily("llm_limit_decisions", "Requests by what limits said", labels=["decision"])
            for decision in ("allowed", "limited", "too_large"):
                decisions.add_metric([decision], limits[decision])
            yield decisions
            yield GaugeMetricFamily("llm_limit_accounts", "Callers whose use is remembered", limits["accounts"])
        if outbox := status.get("outbox"):
            yield from _outbox(outbox)
        if later := status.get("later"):
            yield GaugeMetricFamily("llm_later_waiting", "Deferred requests that wait", later["waiting"])
            yield CounterMetricFamily("llm_later_answered", "Deferred requests that were answered", later["answered"])
        if hub := status.get("hub"):
            reached = float(hub["state"] == "reached")
            yield GaugeMetricFamily("llm_hub_reached", "1 if the last delivery reached the hub", reached)
        if wakeup := status.get("wakeup"):
            yield GaugeMetricFamily("llm_wakeup_connected", "1 while a broker may wake this node", wakeup["connected"])
            yield CounterMetricFamily("llm_wakeups", "Looks at the repository that a broker caused", wakeup["wakeups"])
            yield CounterMetricFamily("llm_wakeup_ignored", "Messages that are no revision", wakeup["ignored"])
        if "fabric" in (mesh := status.get("mesh", {})):
            yield from _mesh(mesh)


def _mesh(mesh: Mapping[str, Any]) -> Iterator[Metric]:
    there = GaugeMetricFamily("llm_mesh_neighbours", "Neighbours that proved who they are", labels=["state"])
    for state in ("alive", "suspect"):
        there.add_metric([state], mesh[state])
    refused = CounterMetricFamily("llm_mesh_refused", "Connections that no neighbour was behind", labels=["reason"])
    for reason, count in mesh["refused"].items():
        refused.add_metric([reason], count)
    left = mesh["certificate_left_s"]
    yield GaugeMetricFamily("llm_mesh_certificate_seconds", "Until this node's certificate ends", left)
    yield from (there, refused)


def _queue(queue: Mapping[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily("llm_concurrency_limit", "Requests that may run at a time", queue["limit"])
    yield GaugeMetricFamily("llm_requests_parked", "Requests that made room for others", queue["parked"])
    yield GaugeMetricFamily("llm_queue_bytes", "Memory that waiting requests take", queue["waiting_bytes"])
    depth = GaugeMetricFamily("llm_queue_waiting", "Requests that wait for their first slot", labels=["level"])
    expected = GaugeMetricFamily("llm_queue_expected_wait_seconds", "A newcomer's probable wait", labels=["level"])
    wait = GaugeMetricFamily("llm_queue_wait_p95_seconds", "Wait for a slot in the last minute", labels=["level"])
    fates = CounterMetricFamily(
        "llm_queue_requests", "Requests admitted, refused, expired, and paused for others", labels=["level", "fate"]
    )
    for level, felt in queue["levels"].items():
        depth.add_metric([level], felt["waiting"])
        expected.add_metric([level], felt["expected_wait_s"])
        if felt["wait_p95_s"] is not None:
            wait.add_metric([level], felt["wait_p95_s"])
        for fate in _FATES:
            fates.add_metric([level, fate], felt[fate])
    yield from (depth, expected, wait, fates)


def _load(load: Mapping[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily("llm_stress", "Worst latency over its objective; 1 is just met", load["stress"])
    yield GaugeMetricFamily("llm_memory_pressure", "Share of the fuller of KV cache and memory", load["memory_share"])
    rung = GaugeMetricFamily("llm_ladder_rung", "1 for the rung that the node stands on", labels=["rung"])
    steps = CounterMetricFamily("llm_ladder_steps", "Steps onto a rung, and back from it", labels=["rung", "way"])
    for name in RUNGS:
        rung.add_metric([name], float(name == load["rung"]))
    for name, taken in load["steps"].items():
        for way, count in taken.items():
            steps.add_metric([name, way], count)
    yield from (rung, steps)


def _routes(routes: Mapping[str, Any]) -> Iterator[Metric]:
    decided = CounterMetricFamily(
        "llm_route_decisions", "Requests by who was to answer, and why", labels=["place", "why"]
    )
    for place, reasons in routes["decided"].items():
        for why, count in reasons.items():
            decided.add_metric([place, why], count)
    moved = CounterMetricFamily("llm_failovers", "Streams that went on elsewhere", labels=["way"])
    for way, told in routes["failovers"].items():
        moved.add_metric([way], told["count"])
    yield from (decided, moved)
    yield CounterMetricFamily("llm_hedges", "Second nodes that were asked because the first was late", routes["hedges"])
    if routes["pause_p95_s"] is not None:
        yield GaugeMetricFamily("llm_failover_pause_p95_seconds", "Pause of late failovers", routes["pause_p95_s"])
    usable = GaugeMetricFamily("llm_upstream_usable", "1 for an upstream that may be asked now", labels=["place"])
    for name, upstream in routes["upstreams"].items():
        usable.add_metric([name], float(upstream["blocked"] is None))
    yield usable


def _outbox(outbox: Mapping[str, Any]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("llm_outbox_waiting", "Items that wait for the network", labels=["priority"])
    for priority in PRIORITIES:
        waiting.add_metric([priority], outbox[priority])
    yield waiting
    yield GaugeMetricFamily("llm_outbox_bytes", "Disk that waiting things take", outbox["used_bytes"])
    yield GaugeMetricFamily("llm_outbox_oldest_seconds", "Age of the oldest item", outbox["oldest_s"] or 0.0)
    fates = CounterMetricFamily("llm_outbox_items", "Items by what became of them", labels=["fate"])
    for fate in ("delivered", "dropped", "expired", "damaged", "forgotten"):
        fates.add_metric([fate], outbox[fate])
    yield fates
