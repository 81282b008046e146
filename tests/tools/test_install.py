"""The installer's decisions; that it really installs is what running this suite shows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", TOOLS / "install.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["install"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_pin_is_read_from_pyproject(installer: ModuleType) -> None:
    assert installer.llama_requirement((TOOLS.parent / "pyproject.toml").read_text()) == "llama-cpp-python==0.3.36"


def test_a_build_is_shared_only_between_equals(installer: ModuleType) -> None:
    keys = {
        installer.build_key("llama==1", "", "avx2", "gcc 12"),
        installer.build_key("llama==2", "", "avx2", "gcc 12"),
        installer.build_key("llama==1", "-DGGML_CUDA=on", "avx2", "gcc 12"),
        installer.build_key("llama==1", "", "avx512", "gcc 12"),
        installer.build_key("llama==1", "", "avx2", "gcc 13"),
    }
    assert len(keys) == 5
    assert installer.build_key("llama==1", "", "avx2", "gcc 12") in keys


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: sse avx2\nflags\t\t: other\n", "avx2 sse"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "asimd fp"),
        ("nothing here", ""),
    ],
)
def test_cpu_features(installer: ModuleType, tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert installer.cpu_features(tmp_path / "cpuinfo") == expected


def test_no_compiler_is_said_with_its_remedy(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installer.compiler() == "none"
    with pytest.raises(installer.Stop, match="build-essential"):
        installer.build("llama-cpp-python==0.3.36", "", tmp_path / "kept")


def test_progress_shows_the_compilers_steps(installer: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    steps = installer.Steps()
    for line in ("noise", "  [3/12] g++ -c x.cpp\n", "  [4/12] g++ -c y.cpp\n"):
        steps.see(line)
    steps.end()
    assert capsys.readouterr().err == "  3/12 files, 25 %\n"  # one line in fifteen seconds


def test_nothing_is_done_twice(installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(installer, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(installer, "pip", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(installer, "install_llama", lambda *what: calls.append(what))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    installer.install(["test"])
    assert ("llama-cpp-python==0.3.36", "") in calls
    calls.clear()
    installer.install([])
    assert calls == [], "the extras of the first run are kept"
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    installer.install([])
    assert ("llama-cpp-python==0.3.36", "-DGGML_CUDA=on") in calls
    calls.clear()
    monkeypatch.delenv("CMAKE_ARGS")
    installer.install([])
    assert calls == [], "a later start without flags keeps the CUDA build"


def test_a_python_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    shell = ["/bin/sh", str(TOOLS / "python"), "-c", "print('ran')"]
    found = subprocess.run(shell, env={"PATH": str(tmp_path), "PYTHON": sys.executable}, capture_output=True, text=True)
    assert found.stdout == "ran\n"
    none = subprocess.run(shell, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert none.returncode == 1
    assert "3.11" in none.stderr


def test_two_builds_of_onnx_runtime_are_refused_together(installer: ModuleType) -> None:
    with pytest.raises(installer.Stop, match="cannot be installed together"):
        installer.joined(["onnx", "onnx-gpu"], [])
    assert installer.main(["--extra", "onnx", "--extra", "onnx-gpu"]) == 1


def test_the_one_that_is_asked_for_replaces_the_other(installer: ModuleType) -> None:
    assert installer.joined(["onnx-gpu"], ["onnx", "test"]) == ["onnx-gpu", "test"]
    assert installer.joined(["test"], ["onnx"]) == ["onnx", "test"], "nothing is taken away unasked"


def test_the_build_for_this_machine(installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(installer.platform, "machine", lambda: "x86_64")
    assert installer.onnx_extra() == "onnx-gpu"
    monkeypatch.setattr(installer.platform, "machine", lambda: "aarch64")
    assert installer.onnx_extra() == "onnx"
    (tmp_path / "stamp.json").write_text('{"extras": ["onnx"]}')
    monkeypatch.setattr(installer.platform, "machine", lambda: "x86_64")
    assert installer.onnx_extra() == "onnx", "what is here stays"
    assert installer.onnx_extra(for_gpu=True) == "onnx-gpu"


def test_a_gpu_is_seen_by_its_node_or_by_the_drivers_tool(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not installer.sees_nvidia(tmp_path / "dev")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: Orin'\n")
    tool.chmod(0o755)
    assert installer.sees_nvidia(tmp_path / "dev")
    tool.unlink()
    (tmp_path / "dev" / "nvidia0").touch()
    assert installer.sees_nvidia(tmp_path / "dev")
