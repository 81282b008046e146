"""From settings to the values that the pure parts of admission take; what makes no sense is a SettingsError."""

from __future__ import annotations

from node.admission.rules import Rules
from node.admission.score import Weights
from node.errors import SettingsError
from node.settings import Queue


def rules(queue: Queue) -> Rules:
    """How the queue decides."""
    try:
        return Rules(
            policy=queue.policy,
            weights=Weights(queue.sla_weight, queue.freshness_weight, queue.affinity_weight),
            ageing_s=queue.ageing_s,
            patience=queue.patience,
            preempt=queue.preempt,
            max_waiting=queue.max_waiting,
            max_bytes=queue.max_bytes,
        )
    except ValueError as error:
        raise SettingsError(f"{error}", hint="See the section [queue] of the settings.") from error
