"""Hosts on one wire, for tests: network namespaces joined by a bridge. Root only; nothing stays behind."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")

_CLONE_NEWNET = 0x40000000


def skip_unless_possible() -> None:
    """Skip the test, with the reason, where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2")
    probe = f"opx{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    subprocess.run(["ip", "netns", "delete", probe], check=False)


class Wire:
    """`count` hosts, numbered from 1, each with one interface `eth0` on the same bridge.

    With `ipv4` a host has 10.91.0.NUMBER; an IPv6 address it has in any case, if only the link's own. Use it as a
    context manager.
    """

    def __init__(self, count: int, *, ipv4: bool = True, prefix: str = "op") -> None:
        self._ipv4 = ipv4
        self._hub = f"{prefix}{os.getpid()}h"
        self.hosts = [f"{prefix}{os.getpid()}n{number}" for number in range(1, count + 1)]
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Wire:
        try:
            _ip("netns", "add", self._hub)
            self._in(self._hub, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
            self._in(self._hub, "link", "set", "bridge", "up")
            for number, host in enumerate(self.hosts, 1):
                self._add(number, host)
            self._wait_until_usable()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for process in self._started:
            process.wait(10)
        for name in [*self.hosts, self._hub]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def start(self, number: int, words: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Run a program on a host; its output goes to `log`. It is killed at the end. No settings of ours reach it."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTPOST_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.hosts[number - 1], *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**clean, **environment},
            )
        self._started.append(process)
        return process

    def on(self, number: int, action: Callable[[], Result]) -> Result:
        """What `action` gives when it runs on that host: sockets that it makes are there."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                with open(f"/run/netns/{self.hosts[number - 1]}") as space:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(space.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                outcome.extend((True, action()))
            except BaseException as error:  # noqa: BLE001  # raised again where it was asked for
                outcome.extend((False, error))

        thread = threading.Thread(target=run)  # it ends in that namespace, so it is used for nothing else
        thread.start()
        thread.join()
        worked, found = outcome
        if not worked:
            raise found
        return found  # type: ignore[no-any-return]

    def plug(self, number: int, plugged: bool) -> None:
        """Set the host's interface down, or up again, as its own user would."""
        self._in(self.hosts[number - 1], "link", "set", "eth0", "up" if plugged else "down")

    def sent_bytes(self, number: int) -> int:
        """What a host has sent on the wire since it was made, as its interface counts."""
        shown = _ip("-n", self.hosts[number - 1], "-s", "-j", "link", "show", "dev", "eth0")
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])

    def _add(self, number: int, host: str) -> None:
        _ip("netns", "add", host)
        self._in(host, "link", "set", "lo", "up")
        port = f"p{number}"
        self._in(self._hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        self._in(self._hub, "link", "set", port, "master", "bridge", "up")
        if self._ipv4:
            self._in(host, "address", "add", f"10.91.0.{number}/24", "dev", "eth0")
        self._in(host, "link", "set", "eth0", "up")

    def _wait_until_usable(self) -> None:
        """Until no IPv6 address is tentative any more."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if all(self._usable(host) for host in self.hosts):
                return
            time.sleep(0.1)
        pytest.fail("the hosts' addresses did not become usable")

    def _usable(self, host: str) -> bool:
        shown = self._in(host, "-6", "address", "show", "dev", "eth0")
        return "fe80::" in shown and "tentative" not in shown

    def _in(self, space: str, *words: str) -> str:
        return _ip("-n", space, *words)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
