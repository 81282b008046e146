"""What a node says of itself to its hub, if it is told to: figures and states, nothing that anybody asked or answered.

A record is made from the sections of the node's status by the table below, and by nothing else: numbers, and states
that are the node's own words. A section or key that does not stand here does not leave the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

STREAM: Final = "node"
KEPT_S: Final = 7 * 86_400.0
_MOST_WORD = 64

# section -> keys; what is not there is left out
TOLD: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("id", "engine", "context"),
    "queue": ("slots", "limit", "running", "parked", "waiting", "slot_held_s"),
    "load": ("rung", "stress", "memory_share"),
    "kv": ("used", "total"),
    "prewarm": ("hit_share", "memory_bytes", "disk_bytes"),
    "memory": ("resident_bytes", "free_bytes", "most_bytes"),
    "cpu": ("threads", "allowed", "reason"),
    "drafts": ("proposed", "accepted"),
    "links": ("open", "answering", "loss_worst", "rtt_worst_ms"),
    "outbox": ("waiting", "used_bytes", "oldest_s", "delivered", "dropped", "expired", "damaged"),
    "later": ("waiting", "oldest_s", "answers", "answered"),
    "routes": ("under_way", "hedges", "pause_p95_s"),
    "rollout": ("profile", "state", "revision"),
}
# The queue's levels: what happened to requests, by level.
_FATES: Final = ("admitted", "refused", "expired", "parked")


def record(status: Mapping[str, Mapping[str, Any]], version: str, state: str, uptime_s: float) -> bytes:
    """One record, as JSON."""
    told: dict[str, Any] = {"version": version, "state": state, "uptime_s": round(uptime_s, 1)}
    for section, keys in TOLD.items():
        there = status.get(section, {})
        if figures := {key: value for key in keys if (value := _plain(there.get(key))) is not None}:
            told[section] = figures
    levels = status.get("queue", {}).get("levels", {})
    if fates := {level: {fate: felt[fate] for fate in _FATES if fate in felt} for level, felt in levels.items()}:
        told["fates"] = fates
    decided = status.get("routes", {}).get("decided", {})
    if answered := {place: sum(why.values()) for place, why in decided.items() if why}:
        told["answered_by"] = answered
    return msgspec.json.encode(told)


def _plain(value: Any) -> Any:
    """A number, a flag or a word; anything else is not told."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 4)
    return value if isinstance(value, str) and len(value) <= _MOST_WORD else None
