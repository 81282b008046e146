"""From settings to the values that the pure parts of admission take; what makes no sense is a SettingsError."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from node.admission import quota
from node.admission.governor import Objectives
from node.admission.quota import Quotas
from node.admission.rules import Rules
from node.admission.score import Weights
from node.errors import SettingsError
from node.settings import Load, Queue, Settings


def rules(queue: Queue) -> Rules:
    """How the queue decides."""
    try:
        return Rules(
            policy=queue.policy,
            weights=Weights(queue.sla_weight, queue.freshness_weight, queue.affinity_weight),
            ageing_s=queue.ageing_s,
            patience=queue.patience,
            urgent_patience=queue.urgent_patience,
            preempt=queue.preempt,
            displaces=queue.displaces,
            max_waiting=queue.max_waiting,
            max_bytes=queue.max_bytes,
        )
    except ValueError as error:
        raise SettingsError(f"{error}", hint="See the section [queue] of the settings.") from error


def objectives(load: Load) -> Objectives:
    """What the node is steered by."""
    return Objectives(load.gap_ms / 1000, load.wait_ms / 1000, load.cached_answers == "ask")


def quotas(settings: Settings) -> Quotas:
    """Who holds which key and how much each may use; a node that others can reach has at least one key."""
    path = settings.limits.quota_file
    if not path:
        default = Quotas().default
        return Quotas(default=replace(default, level=settings.queue.default_level))
    found = quota.parse(_read(Path(path).expanduser()), path)
    if not (found.holders or settings.server.api_keys or settings.server.on_loopback):
        raise SettingsError(
            f"server.host is {settings.server.host}, which others can reach, but {path} names no key.",
            hint="Add a key to it, set server.api_keys, or listen on 127.0.0.1.",
        )
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(quota.MOST_BYTES + 1)  # what is no file has no size to be asked for
        if len(content) > quota.MOST_BYTES:
            raise SettingsError(f"{path} is larger than a quota file can be ({quota.MOST_BYTES} bytes).")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"Cannot read the quota file {path}: {error}.") from error
