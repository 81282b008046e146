"""A node as its users run it: a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`outpost serve` on a free port, and its address once it is ready; killed at the end if it still runs."""
    command = [sys.executable, "-m", "node", "serve", "--port", "0", *arguments]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OUTPOST_") or key == "OUTPOST_HOME"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stderr=errors, env={**clean, **environment}) as process,
    ):
        try:
            yield process, _address(process, errors.fileno())
        finally:
            process.kill()


def _address(process: subprocess.Popen[str], errors: int) -> str:
    for _ in range(1200):
        printed = os.pread(errors, 1 << 20, 0).decode()
        if "stop   Ctrl-C" in printed:
            found = re.search(r"answers at (https?://[0-9.:]+)", printed)
            assert found
            return found[1]
        if process.poll() is not None:
            raise AssertionError(f"the node ended with {process.returncode}:\n{printed}")
        time.sleep(0.05)
    raise AssertionError("the node did not start")
