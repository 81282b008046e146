"""What a node is doing, on a terminal and for programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from node import cli
from node.commands import status
from tests.support.process import free_port
from tests.support.process import serving as serving_process
from tests.support.service import scripted, serving

# Where this suite runs in the background its children would be deaf to Ctrl-C.
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
PROGRAM = HEARING + "import sys; from node import cli; cli.VERBS = ('status',); sys.exit(cli.main())"
KEY = "a-key-of-16-letters"


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", ("status",))


FULL = {
    "node": {"state": "ready", "version": "0.1.0", "uptime_s": 7384.2},
    "model": {"id": "m", "engine": "llama.cpp"},
    "queue": {
        "running": 3,
        "levels": {"critical": {"waiting": 0, "ttft_p95_s": 0.12}, "background": {"waiting": 1200, "expired": 2}},
    },
    "limits": {"refused": {"tenant": 1}, "keys": 0, "none": {}},
    "memory": {"free_bytes": 9_100_000_000, "limit_bytes": None, "used_share": 0.42},
}


def test_sections_and_tables() -> None:
    assert status.headline(FULL) == "m is ready, up 2:03:04, Outpost 0.1.0"
    assert status.describe(FULL) == [
        "model   id m, engine llama.cpp",
        "queue   running 3",
        "limits  refused (tenant 1), keys 0, none none",
        "memory  free 9.1 GB, limit -, used 42%",
        "",
        "LEVELS      WAITING  TTFT P95  EXPIRED",
        "critical    0        120 ms    -",
        "background  1,200    -         2",
    ]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("wait_s", 0.0123, "12 ms"),
        ("wait_s", 93.4, "93 s"),
        ("free_bytes", 1500, "1.5 kB"),
        ("warm_share", 0.256, "26%"),
        ("rate", 1234.56, "1,234.6"),
        ("on", True, "True"),
        ("name", "x", "x"),
        ("nothing", None, "-"),
    ],
)
def test_units_are_told_by_the_names(key: str, value: object, shown: str) -> None:
    assert status.describe({"part": {key: value}}) == [f"part  {status._label(key)} {shown}"]


def test_an_empty_text_is_left_out() -> None:
    assert status.describe({"cpu": {"threads": 1, "reason": ""}}) == ["cpu  threads 1"]


def test_a_node_without_anything_to_say() -> None:
    assert status.headline({}) == "no model is unknown, up 0:00:00, Outpost ?"
    assert status.describe({"node": {}}) == []


async def outpost_status(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "status", *arguments), stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_one_look() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=(KEY,)) as url:
        code, out, err = await outpost_status("--url", url, "--api-key", KEY)
        assert (code, err) == (0, "")
        assert out.splitlines()[0].startswith(f"{url}: scripted is ready, up 0:00:0")
        assert "kv     used 30, total 400" in out
        code, out, _ = await outpost_status("--url", url, "--api-key", KEY, "--json")
        assert json.loads(out)["kv"] == {"used": 30, "total": 400}
        code, _, err = await outpost_status("--url", url)
        assert code == 1
        assert "API key" in err
    code, _, err = await outpost_status("--url", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert "no node answers" in err


async def test_look_after_look() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, "status", "--url", url, "--json", "--watch", "0.1"), stdout=PIPE
        )
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(await process.stdout.readline())["node"]["state"] == "ready"
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130


@pytest.mark.parametrize("wrong", ["0", "x", "1e9"])
def test_wrong_use(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--watch", wrong]) == 2
    assert "--watch" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--help"]) == 0
    assert "outpost status --watch" in capsys.readouterr().out


def test_a_real_node() -> None:
    with serving_process("--engine", "echo") as (_, url):
        code, out, err = asyncio.run(outpost_status("--url", url))
    assert (code, err) == (0, "")
    assert "echo is ready" in out
    for section in ("queue", "kv", "memory"):
        assert f"\n{section} " in out
