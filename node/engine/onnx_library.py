"""ONNX Runtime as a library: loaded once, quiet, its many errors made one."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Iterator
from typing import Any

from node.errors import ModelFileError

_SILENT = 4  # fatal only: what fails comes back as an exception, and is said once, by us


@functools.cache
def onnxruntime() -> Any:
    """The binding module; raises ModelFileError with a remedy where it is not installed."""
    try:
        import onnxruntime as library
    except (ImportError, OSError) as error:
        raise ModelFileError(
            f"ONNX Runtime cannot be loaded: {error}.",
            hint="tools/python tools/install.py --extra onnx (or onnx-gpu for an NVIDIA GPU)",
        ) from error
    library.set_default_logger_severity(_SILENT)
    return library


@functools.cache
def errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises; its classes share no root of their own."""
    native = onnxruntime().capi.onnxruntime_pybind11_state
    own = [kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (*own, RuntimeError, ValueError)


@contextlib.contextmanager
def mapped(message: str, hint: str) -> Iterator[None]:
    """Turn the library's errors into a ModelFileError: `message`, then the library's own first line."""
    try:
        yield
    except errors() as error:
        first = str(error).strip().partition("\n")[0]
        raise ModelFileError(f"{message}: {first}", hint=hint) from error


def version() -> str:
    """As an operator knows it, with the package that it came from."""
    library = onnxruntime()
    package = library.capi.build_and_package_info.package_name
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return f"{package} {importlib.metadata.version(package)}"
    return f"{package} {library.__version__}"
