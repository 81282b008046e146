"""Two hosts on one machine: network namespaces with a TUN device each. Needs root and iproute2, leaves nothing."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.errors import OperatorError

NEAR, FAR = "10.77.0.1", "10.77.0.2"
_MTU = 1500
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SYSCTL = ("net.ipv4.tcp_no_metrics_save=1", "net.ipv6.conf.all.disable_ipv6=1")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The namespaces' names, near (10.77.0.1) and far (10.77.0.2), and their devices' file descriptors."""

    names: tuple[str, str]
    devices: tuple[int, int]

    def inside(self, far: bool) -> list[str]:
        """What stands before a command that runs on a host."""
        return ["ip", "netns", "exec", self.names[far]]


def obstacle() -> str:
    """Why this machine cannot make hosts; "" where it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if not shutil.which("ip"):
        return "`ip` is missing (on Debian: apt install iproute2)"
    return "" if Path("/dev/net/tun").exists() else "this kernel has no /dev/net/tun"


@contextlib.contextmanager
def hosts(prefix: str = "outpost") -> Iterator[Hosts]:
    """Both hosts, called PREFIX-near and PREFIX-far, for a while; raises OperatorError."""
    names = (f"{prefix}-near", f"{prefix}-far")
    made: list[str] = []
    devices: list[int] = []
    try:
        for host, address in zip(names, (NEAR, FAR), strict=True):
            _ip("netns", "add", host)
            made.append(host)
            devices.append(_tun(host))
            inside = ("-n", host)
            _ip(*inside, "address", "add", f"{address}/24", "dev", "path")
            _ip(*inside, "link", "set", "path", "mtu", str(_MTU), "up")
            _ip(*inside, "link", "set", "lo", "up")
            command = ["ip", "netns", "exec", host, "sysctl", "-qw", *_SYSCTL]
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        yield Hosts(names, (devices[0], devices[1]))
    finally:
        for device in devices:
            os.close(device)
        for host in made:
            _ip("netns", "delete", host)


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise OperatorError("`ip` is missing.", hint="On Debian: apt install iproute2") from error
    if done.returncode:
        raise OperatorError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def _tun(host: str) -> int:
    """A TUN device called `path` inside a namespace."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{host}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise OperatorError(f"Cannot enter {host}: {os.strerror(ctypes.get_errno())}.")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"path", _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        raise OperatorError(f"Cannot make a TUN device: {error.strerror}.") from error
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)
        os.close(there)
    return device
