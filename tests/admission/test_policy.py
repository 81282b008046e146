"""Settings of the queue as its rules; absurd ones are refused at the start, with words that help."""

from __future__ import annotations

import pytest

from node.admission.policy import rules
from node.admission.rules import Rules
from node.errors import SettingsError
from node.layers import load
from node.runtime import Node
from node.settings import Queue
from tests.conftest import settings


def test_the_defaults_are_the_rules_own() -> None:
    assert rules(Queue()) == Rules()


def test_every_setting_counts() -> None:
    queue = load(
        environment={},
        flags={
            "queue.policy": "fifo",
            "queue.max_waiting": "3",
            "queue.max_bytes": "2000000",
            "queue.preempt": "never",
            "queue.ageing_s": "9",
            "queue.patience": "7",
            "queue.sla_weight": "0.6",
            "queue.freshness_weight": "0.3",
            "queue.affinity_weight": "0.1",
        },
    ).queue
    found = rules(queue)
    assert (found.policy, found.max_waiting, found.max_bytes, found.preempt) == ("fifo", 3, 2_000_000, "never")
    assert (found.ageing_s, found.patience) == (9, 7)
    assert (found.weights.sla, found.weights.freshness, found.weights.affinity) == (0.6, 0.3, 0.1)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"queue_sla_weight": 0.9}, "sum to 1"),
        ({"queue_sla_weight": 0.4, "queue_freshness_weight": 0.3, "queue_affinity_weight": 0.3}, "above 0.5"),
        ({"queue_sla_weight": 1.5}, "between 0 and 1"),
        ({"queue_sla_weight": "nan"}, "between 0 and 1"),
        ({"queue_sla_weight": "much"}, "sla_weight"),
        ({"queue_policy": "random"}, "policy"),
        ({"queue_preempt": "everybody"}, "preempt"),
        ({"queue_default_level": "urgent"}, "default_level"),
    ],
)
def test_absurd_settings_end_the_start(flags: dict[str, object], word: str) -> None:
    with pytest.raises(SettingsError, match=word):
        Node(settings(engine_kind="echo", **flags))
