"""Which execution provider of ONNX Runtime runs a model: the first of a list that can.

`auto` goes through all that there are. It takes those that need a graph of their own (TensorRT, the NPUs) only for a
folder that was built for them: ONNX Runtime would run any graph there in pieces, slower than without. What an operator
names is tried for every folder, and a list in which nothing can run is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.engine import onnx_library
from node.engine.onnx_folder import OnnxFolder
from node.errors import ModelFileError

log = logging.getLogger(__name__)

_DEVICES = Path("/dev")
_NVIDIA = ("nvidia[0-9]*", "nvhost-gpu", "nvgpu")  # desktop; Jetson before and since L4T 36


@dataclass(frozen=True, slots=True)
class Provider:
    """One kind of hardware: ONNX Runtime's names for it, GenAI's, what brings it, and how to see that it is there."""

    runtime: tuple[str, ...]
    genai: str
    package: str
    devices: tuple[str, ...] = ()  # patterns under /dev, one of which must be there; empty: nothing to look for
    library: str = ""  # in ONNX Runtime's own folder, for a word on why it does not load
    own_graph: bool = True  # only of use for a folder that was built for it


PROVIDERS: Mapping[str, Provider] = {
    "tensorrt": Provider(
        ("NvTensorRTRTXExecutionProvider", "TensorrtExecutionProvider"),
        "NvTensorRtRtx",
        "the extra onnx-gpu, and NVIDIA's TensorRT",
        _NVIDIA,
        "libonnxruntime_providers_tensorrt.so",
    ),
    "cuda": Provider(
        ("CUDAExecutionProvider",),
        "cuda",
        "the extra onnx-gpu, and NVIDIA's CUDA 13 and cuDNN 9",
        _NVIDIA,
        "libonnxruntime_providers_cuda.so",
        own_graph=False,
    ),
    "qnn": Provider(("QNNExecutionProvider",), "QNN", "onnxruntime-qnn", ("adsprpc-smd", "fastrpc-cdsp*")),
    "openvino": Provider(("OpenVINOExecutionProvider",), "OpenVINO", "onnxruntime-openvino"),
    "vitisai": Provider(("VitisAIExecutionProvider",), "VitisAI", "AMD's Ryzen AI software", ("accel/accel*",)),
    "cpu": Provider(("CPUExecutionProvider",), "cpu", "the extra onnx", own_graph=False),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A session, the provider that runs it, and whether its memory is a CUDA device's."""

    session: Any
    provider: str

    @property
    def on_cuda(self) -> bool:
        return self.provider in ("cuda", "tensorrt")


def open_session(folder: OnnxFolder, wanted: Sequence[str], options: Any) -> Opened:
    """Load the graph on the first provider that can run it; raises ModelFileError with every one's reason."""
    names, automatic = (tuple(PROVIDERS), True) if "auto" in wanted else (tuple(wanted), False)
    reasons = {}
    for name in names:
        reason = unfit(folder, name, automatic)
        session = None if reason else _try(folder, name, options)
        if session is not None:
            log.info("execution provider chosen", extra={"provider": name, "library": onnx_library.version()})
            return Opened(session, name)
        reasons[name] = reason or _why_not(name)
        log.info("execution provider passed over", extra={"provider": name, "reason": reasons[name]})
    raise ModelFileError(
        f"No provider in engine.providers can run {folder.path.name}: "
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
        hint="engine.providers = auto takes what this machine has.",
    )


def unfit(folder: OnnxFolder, name: str, automatic: bool, devices: Path = _DEVICES) -> str:
    """Why a provider need not even be tried; empty where it may work."""
    provider = PROVIDERS[name]
    available = onnx_library.onnxruntime().get_available_providers()
    if not set(provider.runtime) & set(available):
        return f"{onnx_library.version()} does not have it; it comes with {provider.package}"
    if automatic and provider.own_graph and provider.genai not in folder.built_for:
        return "this folder was not built for it"
    if not seen(name, devices):
        return f"no such device on this machine (looked for /dev/{', /dev/'.join(provider.devices)})"
    if name == "cuda" and folder.cache_type != "float16":
        return f"this folder was built with a cache of {folder.cache_type}, and CUDA's attention takes float16"
    return ""


def seen(name: str, devices: Path = _DEVICES) -> bool:
    """Whether the provider's kind of device is there, as far as device nodes tell."""
    patterns = PROVIDERS[name].devices
    return not patterns or any(next(devices.glob(pattern), None) for pattern in patterns)


def _try(folder: OnnxFolder, name: str, options: Any) -> Any:
    """A session that really runs on the provider, or None; errors in the graph itself are not the provider's fault."""
    library = onnx_library.onnxruntime()
    available = library.get_available_providers()
    first = next(one for one in PROVIDERS[name].runtime if one in available)
    behind = [other for other in ("CUDAExecutionProvider",) if name == "tensorrt" and other in available]
    if name in ("cuda", "tensorrt"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what is missing; _why_not says it
            library.preload_dlls()  # CUDA that came as Python packages
    ordered = list(dict.fromkeys([first, *behind, "CPUExecutionProvider"]))
    if name == "cpu":
        with onnx_library.mapped(f"ONNX Runtime cannot load {folder.graph}", "Convert it again."):
            return library.InferenceSession(str(folder.graph), options, providers=ordered)
    try:
        session = library.InferenceSession(str(folder.graph), options, providers=ordered)
    except onnx_library.errors() as error:
        log.debug("a provider failed", extra={"provider": name, "error": str(error)})
        return None
    return session if first in session.get_providers() else None


def _why_not(name: str) -> str:
    """The reason that the system's own loader has, where a library is missing."""
    provider = PROVIDERS[name]
    if provider.library:
        place = Path(onnx_library.onnxruntime().__file__).parent / "capi" / provider.library
        try:
            ctypes.CDLL(str(place))
        except OSError as error:
            return f"{str(error).partition(': ')[0]} cannot be loaded; it comes with {provider.package}"
    return "ONNX Runtime could not start it; log.level=debug shows more"
