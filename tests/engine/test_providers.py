"""Providers are tried in order, each with its reason; what is named and cannot run is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from node.engine import onnx_folder, onnx_library, providers
from node.engine.onnx_folder import OnnxFolder
from node.engine.onnx_session import OnnxSession
from node.errors import ModelFileError
from node.settings import Engine
from tests.support.onnx_bytes import graph, write_folder

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: tools/install.py --extra onnx")


@pytest.fixture
def folder(tmp_path: Path) -> OnnxFolder:
    return onnx_folder.read(write_folder(tmp_path / "m"))


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


def test_a_device_is_seen_by_its_node(devices: Path) -> None:
    assert not providers.seen("cuda", devices)
    assert providers.seen("cpu", devices)
    (devices / "nvidiactl").touch()
    assert not providers.seen("cuda", devices), "the driver without a card"
    (devices / "nvidia0").touch()
    assert providers.seen("cuda", devices)
    (devices / "accel").mkdir()
    (devices / "accel" / "accel0").touch()
    assert providers.seen("vitisai", devices)


def test_a_package_that_lacks_a_provider_is_named_with_what_brings_it(folder: OnnxFolder) -> None:
    reason = providers.unfit(folder, "qnn", automatic=True)
    assert "does not have it; it comes with onnxruntime-qnn" in reason
    assert onnx_library.version() in reason


def test_the_cpu_can_always(folder: OnnxFolder, devices: Path) -> None:
    assert providers.unfit(folder, "cpu", True, devices) == ""


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnx_library.onnxruntime().get_available_providers(),
    reason="needs onnxruntime-gpu (tools/install.py --extra onnx-gpu)",
)
def test_cuda_needs_a_card_and_a_folder_built_for_it(folder: OnnxFolder, devices: Path, tmp_path: Path) -> None:
    assert "no such device on this machine (looked for /dev/nvidia[0-9]*" in providers.unfit(
        folder, "cuda", True, devices
    )
    (devices / "nvidia0").touch()
    assert "cache of float32" in providers.unfit(folder, "cuda", True, devices)
    half = onnx_folder.read(write_folder(tmp_path / "half", graph(cache=10)))
    assert providers.unfit(half, "cuda", True, devices) == ""
    assert providers.unfit(half, "tensorrt", True, devices) == "this folder was not built for it"
    assert providers.unfit(half, "tensorrt", False, devices) == ""


def test_a_missing_provider_that_was_named_is_refused_with_its_reason(folder: OnnxFolder) -> None:
    with pytest.raises(ModelFileError, match=r"No provider .* can run m: qnn: onnxruntime.*; vitisai: onnxruntime"):
        providers.open_session(folder, ("qnn", "vitisai"), None)


@pytest.mark.onnx
def test_auto_falls_through_to_the_cpu_with_a_line_for_each(
    onnx_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    session = OnnxSession(_read(onnx_folder), Engine(kind="onnx", slots=1), 64)
    assert session.provider == "cpu"
    said = [record for record in caplog.records if record.name == "node.engine.providers"]
    assert [record.provider for record in said] == list(providers.PROVIDERS)
    assert all(record.reason for record in said[:-1])
    assert said[-1].getMessage() == "execution provider chosen"


@pytest.mark.skipif(not providers.seen("cuda"), reason="no NVIDIA GPU on this machine")
@pytest.mark.onnx
def test_a_cuda_folder_runs_on_the_card() -> None:
    from node.models import convert
    from tests.conftest import DEFAULT_MODEL

    folder = convert.folder_of(DEFAULT_MODEL, "cuda")
    if not folder.exists():
        pytest.skip("outpost models convert --for cuda was not run")
    assert OnnxSession(_read(folder), Engine(kind="onnx", slots=1, providers=("cuda",)), 64).provider == "cuda"


def _read(path: Path) -> OnnxFolder:
    return onnx_folder.read(path)
