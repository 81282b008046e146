"""Settings of the queue as its rules; absurd ones are refused at the start, with words that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.admission.governor import Objectives
from node.admission.policy import objectives, quotas, rules
from node.admission.rules import Rules
from node.errors import SettingsError
from node.layers import load
from node.runtime import Node
from node.settings import Load, Queue
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


def test_the_objectives_are_settings() -> None:
    assert objectives(Load()) == Objectives()
    assert objectives(Load(gap_ms=50, wait_ms=200, cached_answers="ask")) == Objectives(0.05, 0.2, True)


def test_without_a_quota_file_nothing_is_limited() -> None:
    found = quotas(settings(queue_default_level="background"))
    assert found.holders == {}
    assert (found.default.level, found.default.ceiling) == ("background", "critical")
    assert found.default.allowance("m").most_output is None


def test_a_quota_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text("[default]\nlimits = { output_tokens_per_minute = 600 }\n")
    found = quotas(settings(limits_quota_file=tmp_path / "quotas.toml"))
    assert found.default.allowance("m").most_output == 300


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"[tenant.acme]\n", "did you mean `tenants`"),
        (b"[default]\nlevel = 'urgent'\n", "line 2"),
        (b"[default]\nlimits = { requests_per_minute = -1 }\n", "requests_per_minute|at least 1"),
        (b"not toml", "not valid TOML"),
        (b"\xff\xfe", "Cannot read"),
        (b"#" * ((1 << 20) + 1), "larger than a quota file"),
        (None, "Cannot read"),
    ],
    ids=["typo", "level", "negative", "no TOML", "no text", "huge", "missing"],
)
def test_a_bad_quota_file_ends_the_start(tmp_path: Path, content: bytes | None, word: str) -> None:
    path = tmp_path / "quotas.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=word) as caught:
        Node(settings(engine_kind="echo", limits_quota_file=path))
    assert "quotas.toml" in caught.value.message


def test_a_node_that_others_can_reach_has_a_key(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text("[default]\n")
    with pytest.raises(SettingsError, match="names no key"):
        quotas(settings(server_host="0.0.0.0", limits_quota_file=path))
    path.write_text("[tenants.acme.keys.alice]\nkey = 'the-key-of-alice-0123'\n")
    assert len(quotas(settings(server_host="0.0.0.0", limits_quota_file=path)).holders) == 1
    with pytest.raises(SettingsError) as caught:
        settings(server_host="0.0.0.0")
    assert "limits.quota_file" in (caught.value.hint or "")
