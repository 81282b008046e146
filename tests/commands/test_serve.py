"""`outpost serve` as a process: what it prints, how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from node import layers
from node.cli import build_parser, main
from node.commands.serve import _announce, load_settings
from node.errors import SettingsError
from node.fleet import profiles
from tests.models.support import gguf_bytes
from tests.support.process import serving

ECHO = """\
name = "mine"
description = "mine"
[settings.engine]
kind = "echo"
slots = 2
[settings.queue]
max_waiting = 3
"""


def announced(capsys: pytest.CaptureFixture[str], url: str, *, asks: bool = False) -> str:
    """What `serve` prints for a node at `url`."""

    class Info:
        id = "echo"

    class Model:
        info = Info()

    class Announced:
        model = Model()

    node = Announced()
    node.url = url  # type: ignore[attr-defined]
    _announce(node, asks=asks)  # type: ignore[arg-type]
    return capsys.readouterr().err


def test_it_serves_until_sigterm() -> None:
    with serving("--engine", "echo") as (process, url):
        with urllib.request.urlopen(f"{url}/health/ready") as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_the_printed_addresses_work(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("--engine", "echo") as (_, url):
        printed = announced(capsys, url)
        assert f"page   {url}/\n" in printed
        command = printed[printed.index("curl -N") : printed.index("  stop")]
        answer = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
        assert answer.stdout.endswith("data: [DONE]\n\n")


def test_the_printed_line_has_a_place_for_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    key = "a-key-of-16-letters"
    with serving("--engine", "echo", OUTPOST_SERVER_API_KEYS=key) as (_, url):
        printed = announced(capsys, url, asks=True)
        command = printed[printed.index("curl -N") : printed.index("  stop")]
        answer = subprocess.run(
            ["/bin/sh", "-c", command], env={"KEY": key}, capture_output=True, text=True, timeout=60, check=True
        )
        assert answer.stdout.endswith("data: [DONE]\n\n")


def test_flags_file_and_environment_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[queue]\nmax_waiting = 3\n")
    arguments = [
        "serve",
        "--config",
        "mine.toml",
        "--port",
        "9",
        "--set",
        "log.level=error",
        "--set",
        "queue.max_waiting=4",
    ]
    loaded = load_settings(build_parser().parse_args(arguments))
    assert (loaded.server.port, loaded.log.level, loaded.queue.max_waiting) == (9, "error", 4)
    with pytest.raises(SettingsError, match="KEY=VALUE"):
        load_settings(build_parser().parse_args(["serve", "--set", "port"]))


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    shown = capsys.readouterr().out
    for key, _, meaning in layers.describe():
        assert f"  {key} " in shown
        assert meaning in shown


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--set", "server.prot=1"], 2, "server.prot"),
        (["--port", "nine"], 2, "command line"),
        (["--host", "0.0.0.0"], 2, "API key"),
        (["--engine", "llama", "--model", "/nowhere/x.gguf"], 1, "no file"),
        (["--engine", "llama", "--model", "smollm3"], 1, "smollm"),
    ],
)
def test_what_is_wrong_ends_with_a_word_and_a_code(arguments: list[str], code: int, word: str) -> None:
    command = [sys.executable, "-m", "node", "serve", "--engine", "echo", "--port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == code
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_profile_for_this_once_or_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    (tmp_path / "mine.toml").write_text(ECHO)
    once = build_parser().parse_args(["serve", "--profile", str(tmp_path / "mine.toml"), "--slots", "5"])
    loaded = load_settings(once, profiles.chosen(once.profile))
    assert (loaded.engine.kind, loaded.engine.slots, loaded.queue.max_waiting) == ("echo", 5, 3)
    profiles.use(profiles.find(str(tmp_path / "mine.toml")))
    always = build_parser().parse_args(["serve"])
    assert load_settings(always, profiles.chosen(always.profile)).queue.max_waiting == 3


def test_a_profile_in_use_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    (tmp_path / "mine.toml").write_text(ECHO)
    profiles.use(profiles.find(str(tmp_path / "mine.toml")))
    with serving() as (_, url), urllib.request.urlopen(f"{url}/v1/models") as response:
        assert b'"echo"' in response.read()


def test_a_profile_for_other_hardware_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    (tmp_path / "other.toml").write_text(ECHO + "[minimum]\ncores = 4000\n")
    assert main(["serve", "--profile", str(tmp_path / "other.toml")]) == 2
    assert "needs 4000" in capsys.readouterr().err


def test_a_profile_with_another_model_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes())
    head = f'name = "p"\ndescription = "d"\nmodel_sha256 = "{"0" * 64}"\n'
    (tmp_path / "p.toml").write_text(f'{head}[settings.model]\nname = "{tmp_path}/m.gguf"\n')
    assert main(["serve", "--profile", str(tmp_path / "p.toml")]) == 1
    assert "is not the file that the profile p wants" in capsys.readouterr().err
