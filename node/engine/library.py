"""llama.cpp as a library: loaded once, its log lines sent to ours.

The low-level binding is used on purpose: its high-level class runs one request at a time and holds the GIL.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
from typing import Any

from node.errors import ModelFileError

log = logging.getLogger("node.engine.llama_cpp")

# ggml's levels, one step milder here: its "warnings" at load are about defaults that this node changes on purpose.
_LEVELS = {2: logging.DEBUG, 3: logging.INFO, 4: logging.ERROR}

# GNU OpenMP's threads spin at a barrier before they sleep: 300,000 rounds, which on x86 with its slow `pause` are
# 14 ms, more than a whole step. One whose partner another process displaced spins its own core away, too. This many are
# some 50 µs, longer than a barrier takes while nobody disturbs.
_SPINS = "1000"


@functools.cache
def llama() -> Any:
    """The binding module; raises ModelFileError with a remedy where it was not built."""
    if platform.machine() == "x86_64":
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)  # read by the library when it is loaded, only then
    try:
        import llama_cpp.llama_cpp as library
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelFileError(
            f"llama.cpp cannot be loaded: {error}.",
            hint="Run tools/start, which builds it; `outpost doctor` says more.",
        ) from error
    library.llama_log_set(_log_callback(library), None)
    library.llama_backend_init()
    return library


@functools.cache
def _log_callback(library: Any) -> Any:
    """Kept by the cache: llama.cpp holds the pointer for as long as the process lives."""

    @library.llama_log_callback  # type: ignore[untyped-decorator]
    def forward(level: int, text: bytes | None, _data: object) -> None:
        line = (text or b"").decode(errors="replace").strip()
        if line and line != ".":
            log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)

    return forward
