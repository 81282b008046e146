"""A real MQTT broker on loopback, which may be killed and come back at the same port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.process import free_port

PROGRAM = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_mosquitto = pytest.mark.skipif(PROGRAM is None, reason="needs Mosquitto (apt-get install mosquitto)")


class Mosquitto:
    """`start` it, `kill` it; `lines` are more of its configuration."""

    def __init__(self, folder: Path, *lines: str, anonymous: bool = True) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._config = folder / "mosquitto.conf"
        allowed = f"allow_anonymous {'true' if anonymous else 'false'}"
        own = ["user root"] if os.geteuid() == 0 else []
        text = [f"listener {self.port} 127.0.0.1", allowed, "persistence false", *own, *lines]
        self._config.write_text("\n".join([*text, ""]))

    def url(self, scheme: str = "mqtt", topic: str = "fleet/wake") -> str:
        """What a node is told."""
        return f"{scheme}://localhost:{self.port}/{topic}"

    def start(self) -> Mosquitto:
        """Run until it accepts connections."""
        assert PROGRAM is not None
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen([PROGRAM, "-c", str(self._config)], stdout=quiet, stderr=quiet)
        for _ in range(1000):
            assert self._process.poll() is None, "Mosquitto ended"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            except OSError:
                time.sleep(0.01)
            else:
                return self
        raise AssertionError("Mosquitto does not listen")

    def kill(self) -> None:
        """As a power cut would; what it had is forgotten."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def add_user(file: Path, name: str, password: str) -> None:
    """Make a file of one user for `password_file`."""
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(file), name, password], check=True, capture_output=True)
