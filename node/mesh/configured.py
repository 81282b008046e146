"""Places of neighbours as people write them in the settings."""

from __future__ import annotations

import ipaddress

from node.errors import SettingsError
from node.mesh.peers import Place

DEFAULT_PORT = 8470


def place_of(text: str) -> Place:
    """A place from the settings: HOST, HOST:PORT, or [IPv6]:PORT; raises SettingsError."""
    host, port = text, ""
    if text.startswith("[") and "]" in text:
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = int(port) if port.isdecimal() else DEFAULT_PORT if not port else 0
    if not host or not 0 < number < 1 << 16 or (":" in host and not _is_address(host)):
        raise SettingsError(
            f"mesh.peers: `{text}` is no HOST:PORT.", hint="For instance 10.0.0.7:8470 or [fd00::7]:8470."
        )
    return Place((host,), number)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
