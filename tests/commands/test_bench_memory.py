"""`outpost bench memory` from the command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from node import cli
from node.bench import memory
from node.bench.memory import Variant


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_") and name != "OUTPOST_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", ("bench",))


def test_only_llama_cpp_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "memory", "--quick", "--set", "engine.kind=echo"]) == 2
    assert "engine.kind must be llama" in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "memory", "--quick", "--model", "./none.gguf"]) == 1
    assert "none.gguf" in capsys.readouterr().err


@pytest.mark.model
def test_one_variant(weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    too_long = Variant(1 << 20)  # longer than the model was trained for, so it is left out
    monkeypatch.setattr(memory, "QUICK", (Variant(512, slots=2, threads=1), too_long))
    code = cli.main(["bench", "memory", "--quick", "--model", str(weights)])
    out = capsys.readouterr().out
    assert "outpost bench memory" in out
    assert "context 512, f16, 2 slots, 1 thread" in out
    assert "1,048,576" not in out
    assert "KV cache 11" in out
    assert code == (1 if "MISSED" in out else 0)
    computed, taken = (float(re.search(rf"{word} (\d+)", out)[1]) for word in ("computed", "took"))  # type: ignore[index]
    assert taken > 100, "MiB: the weights alone are"
    assert 0.7 < computed / taken < 1.3
