"""`outpost prewarm` against a node, and what it makes of the node's numbers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node import cli
from node.commands import prewarm
from tests.support.service import ScriptedPrewarming, ScriptedService, serving

ROW = {
    "id": 12,
    "tenant": "",
    "kind": "shared",
    "tokens": 1612,
    "adds": 502,
    "per_hour": 3.25,
    "saves_s": 2.4,
    "planned": ["disk"],
    "in_memory": 100,
    "on_disk": 1612,
    "why": "asked often enough",
}
SAID = {
    "enabled": True,
    "usable": True,
    "requests": 600,
    "hits": 412,
    "prompt_tokens": 500_000,
    "cached_tokens": 330_000,
    "saved_s": 812.4,
    "memory_bytes": 210_000_000,
    "memory_budget": 268_000_000,
    "disk_bytes": 900_000_000,
    "disk_budget": 1_000_000_000,
    "evictions": 7,
    "loads": 20,
    "saves": 30,
    "prefill_ms_per_token": 1.4,
    "load_ms_per_token": 0.006,
    "history": {"prefixes": 365, "nodes": 1203, "bytes": 2_100_000},
}


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", ("prewarm",))


@pytest.fixture
def outpost(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command against a node with these rows; gives what it printed."""

    def ask(service: ScriptedService, *words: str) -> str:
        async def scene() -> int:
            async with serving(service) as url:
                return await asyncio.to_thread(cli.main, ["prewarm", *words, "--url", url])

        assert asyncio.run(scene()) == 0
        return capsys.readouterr().out

    return ask


def service(*rows: dict[str, Any]) -> ScriptedService:
    return ScriptedService(prewarm=ScriptedPrewarming(list(rows)))


def test_why_is_a_table(outpost: Callable[..., str]) -> None:
    out = outpost(service(ROW, {**ROW, "id": 13, "tenant": None, "kind": "pinned", "planned": ["memory"]}), "why")
    assert out.splitlines() == [
        "PREFIX  TENANT     KIND    TOKENS  ADDS  ASKED  SAVES    IN MEMORY  ON DISK  WHY",
        "12      -          shared  1,612   +502  3.2/h  2.4 s/h  no         yes      asked often enough",
        "13      everybody  pinned  1,612   +502  3.2/h  2.4 s/h  not yet    for now  asked often enough",
    ]


def test_why_shows_as_many_as_asked_for(outpost: Callable[..., str]) -> None:
    rows = [{**ROW, "id": id} for id in range(30)]
    assert len(outpost(service(*rows), "why").splitlines()) == 21
    assert len(outpost(service(*rows), "why", "--top", "3").splitlines()) == 4


def test_why_for_programs(outpost: Callable[..., str]) -> None:
    assert json.loads(outpost(service(ROW), "why", "--json")) == [ROW]


def test_nothing_warm_is_said_in_words(outpost: Callable[..., str]) -> None:
    assert "no beginning was sent by enough sessions" in outpost(service(), "why")


def test_forget(outpost: Callable[..., str]) -> None:
    node = service(ROW, ROW)
    assert outpost(node, "forget").startswith("2 prefixes are forgotten.")
    assert json.loads(outpost(node, "forget", "--json")) == {"forgotten": 0}
    assert isinstance(node.prewarm, ScriptedPrewarming)
    assert node.prewarm.forgot == 2


def test_status_in_words() -> None:
    assert prewarm.summary(SAID) == [
        "hits      412 of 600 requests, 66% of their prompts' tokens",
        "saved     812.4 s of reading",
        "memory    210.0 MB of 268.0 MB, 7 pieces had to go",
        "disk      900.0 MB of 1.0 GB, 20 loads, 30 saves",
        "history   365 prefixes that many sent, 1,203 in all, 2.1 MB",
        "a token   1.40 ms to read, 0.006 ms to load",
    ]


def test_status_of_a_node_that_was_asked_nothing() -> None:
    idle = {**SAID, "hits": 0, "requests": 0, "prompt_tokens": 0, "cached_tokens": 0}
    assert prewarm.summary(idle)[0] == "hits      0 of 0 requests, none of their prompts' tokens"


@pytest.mark.parametrize(
    ("said", "word"), [({}, "is off"), ({"enabled": False}, "is off"), ({"enabled": True, "usable": False}, "in full")]
)
def test_status_where_there_is_none(said: dict[str, bool], word: str, outpost: Callable[..., str]) -> None:
    (line,) = prewarm.summary(said)
    assert word in line


def test_status_asks_the_node(outpost: Callable[..., str]) -> None:
    assert "is off" in outpost(service(), "status")
    assert json.loads(outpost(service(), "status", "--json")) == {}


@pytest.mark.parametrize("words", [[], ["why", "--top", "0"], ["why", "--top", "x"], ["erase"]])
def test_wrong_use_is_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prewarm", *words]) == 2
    assert "prewarm" in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prewarm", "status", "--url", "http://127.0.0.1:9"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
