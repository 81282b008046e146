"""Admission's figures in /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import prometheus_client as prometheus

from node.admission.quota import Quotas
from node.admission.reception import Reception
from node.generation import Finished, ModelInfo, Request
from node.layers import load
from node.server.gauges import Gauges
from tests.support.service import ScriptedService
from tests.support.sources import HandSource

INFO = ModelInfo("m", "hand", 0, 4096, 1, 256, 0, can_chat=True, parked=1)


class Joined(ScriptedService):
    """A service with a real reception."""

    def __init__(self, policy: str = "levels") -> None:
        super().__init__()
        self.hand = HandSource()
        settings = load(environment={}, flags={"queue.policy": policy})
        self.reception = Reception(self.hand, INFO, settings, Quotas())

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        return self.reception.status()


def figures(service: ScriptedService) -> dict[str, float]:
    registry = prometheus.CollectorRegistry()
    registry.register(Gauges(service))
    lines = prometheus.generate_latest(registry).decode().splitlines()
    rows = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


async def test_queue_limits_and_ladder() -> None:
    service = Joined()
    for id, level in (("a", "background"), ("b", "standard"), ("c", "critical")):
        service.reception.source.submit(Request(id, (1,), 5, level=level), lambda event: None)  # type: ignore[arg-type]
    service.hand.emit("c", Finished("stop", 1, 1))
    seen = figures(service)
    assert seen["llm_concurrency_limit"] == 1
    assert seen["llm_requests_parked"] == 1, "the background one made room, and standard is before it now"
    assert seen['llm_queue_waiting{level="standard"}'] == 0
    assert seen['llm_queue_requests_total{fate="parked",level="background"}'] == 1
    assert seen['llm_queue_requests_total{fate="admitted",level="critical"}'] == 1
    assert 'llm_queue_wait_p95_seconds{level="critical"}' in seen
    assert 'llm_queue_wait_p95_seconds{level="interactive"}' not in seen
    assert seen['llm_limit_decisions_total{decision="allowed"}'] == 3
    assert seen['llm_ladder_rung{rung="normal"}'] == 1
    assert seen['llm_ladder_rung{rung="shorten"}'] == 0
    assert seen['llm_ladder_steps_total{rung="refuse",way="up"}'] == 0
    assert seen["llm_stress"] == 0


async def test_a_part_that_is_not_there_has_no_figures() -> None:
    assert not any("ladder" in name for name in figures(Joined("fifo")))
    assert figures(ScriptedService()) == {}


class Routed(ScriptedService):
    """A service whose requests went to and fro."""

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "routes": {
                "hedges": 2,
                "pause_p95_s": 0.25,
                "decided": {"local": {"fastest": 5}, "peer": {"busy": 3, "warm": 1}, "later": {}},
                "failovers": {"peer to local": {"count": 4}},
                "upstreams": {"peer/a": {"blocked": None}, "cloud/x": {"blocked": "401"}},
            }
        }


def test_who_answered_and_what_broke() -> None:
    seen = figures(Routed())
    assert seen['llm_route_decisions_total{place="peer",why="busy"}'] == 3
    assert seen['llm_failovers_total{way="peer to local"}'] == 4
    assert seen["llm_hedges_total"] == 2
    assert seen["llm_failover_pause_p95_seconds"] == 0.25
    assert seen['llm_upstream_usable{place="cloud/x"}'] == 0
    assert seen['llm_upstream_usable{place="peer/a"}'] == 1


class Among(ScriptedService):
    """A service whose node has neighbours, or none."""

    def __init__(self, mesh: dict[str, Any]) -> None:
        super().__init__()
        self.mesh = mesh

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        return {"mesh": self.mesh}


async def test_neighbours() -> None:
    refused = {"its certificate is over; issue a new one": 3}
    mesh = {"fabric": "f" * 16, "alive": 4, "suspect": 1, "refused": refused, "certificate_left_s": 86_400}
    seen = figures(Among(mesh))
    assert seen['llm_mesh_neighbours{state="alive"}'] == 4
    assert seen['llm_mesh_refused_total{reason="its certificate is over; issue a new one"}'] == 3
    assert seen["llm_mesh_certificate_seconds"] == 86_400
    assert figures(Among({"state": "alone"})) == {}


async def test_what_waits_for_the_network() -> None:
    class Waiting(ScriptedService):
        def status(self) -> Mapping[str, Mapping[str, Any]]:
            counts = {"delivered": 5, "dropped": 1, "expired": 0, "damaged": 0, "forgotten": 0}
            depth = {"alarm": 0, "status": 2, "telemetry": 3, "log": 0, "used_bytes": 99, "oldest_s": None}
            return {
                "outbox": {**depth, **counts},
                "later": {"waiting": 4, "answered": 6},
                "hub": {"state": "unreachable"},
            }

    seen = figures(Waiting())
    assert seen['llm_outbox_waiting{priority="telemetry"}'] == 3
    assert seen['llm_outbox_items_total{fate="dropped"}'] == 1
    assert seen["llm_outbox_bytes"] == 99
    assert seen["llm_outbox_oldest_seconds"] == 0
    assert seen["llm_later_waiting"] == 4
    assert seen["llm_later_answered_total"] == 6
    assert seen["llm_hub_reached"] == 0


def test_a_wake_up_that_is_there_is_counted() -> None:
    class Woken(ScriptedService):
        def status(self) -> Mapping[str, Mapping[str, Any]]:
            return {"wakeup": {"connected": False, "wakeups": 3, "ignored": 2}}

    seen = figures(Woken())
    assert seen["llm_wakeup_connected"] == 0
    assert (seen["llm_wakeups_total"], seen["llm_wakeup_ignored_total"]) == (3, 2)
    assert "llm_wakeup_connected" not in figures(ScriptedService())
