"""Records of a node's figures: what the table names, and nothing else."""

from __future__ import annotations

import json

from node.mesh import telemetry

STATUS = {
    "model": {"id": "smollm2", "engine": "llama", "context": 2048, "prompt": "canary"},
    "queue": {
        "slots": 8,
        "running": 1.23456789,
        "levels": {"critical": {"admitted": 3, "wait_p95_s": None}},
        "x": "canary",
    },
    "memory": {"free_bytes": None, "resident_bytes": 5},
    "outbox": {"waiting": 3, "reason": "canary"},
    "routes": {"hedges": 2, "decided": {"local": {"idle": 3, "busy": 1}, "peer": {}}, "failovers": {"canary": {}}},
    "streams": {"last": "canary"},
    "cpu": {"reason": "c" * 100, "threads": True},
    "load": {"rung": "normal", "stress": {"canary": 1}},
}


def test_only_what_the_table_names_is_told() -> None:
    told = telemetry.record(STATUS, "1.2", "ready", 12.345)
    assert b"canary" not in told
    assert json.loads(told) == {
        "version": "1.2",
        "state": "ready",
        "uptime_s": 12.3,
        "model": {"id": "smollm2", "engine": "llama", "context": 2048},
        "queue": {"slots": 8, "running": 1.2346},
        "memory": {"resident_bytes": 5},
        "outbox": {"waiting": 3},
        "cpu": {"threads": True},
        "load": {"rung": "normal"},
        "routes": {"hedges": 2},
        "answered_by": {"local": 4},
        "fates": {"critical": {"admitted": 3}},
    }


def test_a_node_without_parts_says_little() -> None:
    assert json.loads(telemetry.record({}, "1.2", "starting", 0.0)) == {
        "version": "1.2",
        "state": "starting",
        "uptime_s": 0.0,
    }
