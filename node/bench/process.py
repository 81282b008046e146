"""A real node in a process of its own: started, waited for, looked at from outside, stopped.

It reads the same settings files and environment as this process, but listens on a free loopback port without keys.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from node.client import Client
from node.errors import OperatorError
from node.machine.memory import most_resident

_HOUSE = Path(__file__).resolve().parents[2]  # where the package `node` lies
_ANSWERS = re.compile(r"answers at (http://\S+)")
_OWN = (
    *("server.host=127.0.0.1", "server.port=0", "server.api_keys=", "limits.quota_file="),
    *("server.tls_certificate=", "server.tls_key=", "log.level=warning"),
)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def environment() -> dict[str, str]:
    """Of a process that runs this very package, wherever it lies."""
    path = os.pathsep.join(filter(None, (str(_HOUSE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


class NodeProcess:
    """An async context manager; inside it the node is ready. `changes` are settings as KEY=VALUE.

    `through` is the module that is run, with words of its own before `serve`.
    """

    def __init__(
        self,
        changes: Sequence[str] = (),
        *,
        through: Sequence[str] = ("node",),
        start_s: float = 120.0,
        stop_s: float = 20.0,
    ) -> None:
        self._changes, self._through = changes, through
        self._start_s, self._stop_s = start_s, stop_s
        self._said: deque[str] = deque(maxlen=20)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            *self._command(),
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None, "its errors are piped"
        self._reading = asyncio.create_task(self._read(self._process.stderr, found))
        try:
            async with asyncio.timeout(self._start_s):
                self.url = await found
                await self._ready()
        except TimeoutError as error:
            await self._stop()
            raise OperatorError(f"The node was not ready within {self._start_s:g} s.", hint=self._last()) from error
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process is not None, "the node was not started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How the process ended; None while it runs."""
        return None if self._process is None else self._process.returncode

    def rss(self) -> int:
        """Bytes of it that are in memory now; 0 once it is gone."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
        except OSError:
            return 0

    def peak_rss(self) -> int:
        """The most bytes of it that ever were in memory at once; 0 once it is gone."""
        return most_resident(self.pid) or 0

    def cpu_s(self) -> float:
        """Seconds of processor time that its threads have used."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def _command(self) -> list[str]:
        changes = [word for change in (*self._changes, *_OWN) for word in ("--set", change)]
        return [sys.executable, "-P", "-m", *self._through, "serve", *changes]

    async def _read(self, errors: asyncio.StreamReader, found: asyncio.Future[str]) -> None:
        """Everything the node says, for as long as it lives; the last lines are kept."""
        async for line in errors:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._said.append(text)
            if (match := _ANSWERS.search(text)) and not found.done():
                found.set_result(match[1])
        if not found.done():
            found.set_exception(OperatorError("The node ended before it was ready.", hint=self._last()))

    async def _ready(self) -> None:
        async with Client(self.url) as client:
            while not (await client.health()).ready:  # noqa: ASYNC110  # what is waited for is in another process
                await asyncio.sleep(0.05)

    async def _stop(self) -> None:
        """SIGTERM, patience, SIGKILL."""
        process, reading = self._process, self._reading
        if process is None or reading is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._stop_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        finally:
            if process.returncode is None:  # we are being cancelled while we wait
                process.kill()
        await reading

    def _last(self) -> str | None:
        return "It said:\n    " + "\n    ".join(self._said) if self._said else None
