"""A model's weights in another form, made by llama.cpp itself and whole on disk before they have their name.

Any form can be the source: weights that are quantized already are unpacked and packed again, which can only lose (and
the gate says how much). While it is made, the file is called `….part`; a process that dies leaves no more than that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from node.engine.library import llama
from node.errors import ModelFileError
from node.machine.hardware import disk_free
from node.models import gguf
from node.models.partial import sync_folder

# llama_ftype
TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}
_BUFFER_BYTES = 256 << 20  # of rows in memory at a time; llama.cpp's default is 8 GiB
_LOOK_S = 0.2
_SPARE_BYTES = 64 << 20  # nobody's disk is filled to the last byte

Told = Callable[[int], None]


def requantize(source: Path, target: Path, form: str, threads: int, most: int, tell: Told = lambda done: None) -> int:
    """Write `source` in `form`; gives the file's bytes, of which there may be `most`. Raises ModelFileError.

    `tell` hears how many bytes are there, a few times a second.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _gone_afterwards(target.with_name(target.name + ".part")) as part:
            _check_space(target.parent, most)
            if _run(source, part, form, threads, tell):
                raise _failure(source, part, form, most)
            gguf.read(part)
            _settle(part, target)
        return target.stat().st_size
    except OSError as error:
        raise ModelFileError(f"Cannot write {target}: {error.strerror or error}.") from error


@contextlib.contextmanager
def _gone_afterwards(path: Path) -> Iterator[Path]:
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _run(source: Path, part: Path, form: str, threads: int, tell: Told) -> int:
    """llama.cpp's own work, in a thread, so that this one can watch the file grow and hear Ctrl-C."""
    library = llama()
    params = library.llama_model_quantize_default_params()
    params.ftype, params.nthread = TYPES[form], threads
    params.allow_requantize = True
    params.max_buf_size = _BUFFER_BYTES
    result = [1]

    def work() -> None:
        result[0] = library.llama_model_quantize(str(source).encode(), str(part).encode(), ctypes.byref(params))

    thread = threading.Thread(target=work, name="quantize", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_S)
        tell(part.stat().st_size if part.exists() else 0)
    return result[0]


def _settle(part: Path, target: Path) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)
    sync_folder(target.parent)


def _check_space(folder: Path, most: int) -> None:
    free = disk_free(folder)
    if free is not None and free < most + _SPARE_BYTES:
        raise _no_space(folder, most, free)


def _failure(source: Path, part: Path, form: str, most: int) -> ModelFileError:
    """What went wrong, as far as can be seen: llama.cpp only says that something did."""
    free, there = disk_free(part.parent), part.stat().st_size if part.exists() else 0
    if free is not None and free < min(most - there, _SPARE_BYTES):
        return _no_space(part.parent, most, free)
    return ModelFileError(
        f"llama.cpp could not write {source.name} as {form}: the file is damaged, or of a kind that it cannot unpack.",
        hint="`outpost models verify` checks the file; log.level=debug shows llama.cpp's own words.",
    )


def _no_space(folder: Path, most: int, free: int) -> ModelFileError:
    return ModelFileError(
        f"There is no space in {folder}: up to {most / 1e6:,.0f} MB are needed, {free / 1e6:,.0f} MB are free.",
        hint="Make room, or set OUTPOST_HOME to a folder on a larger disk.",
    )
