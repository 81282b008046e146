"""Which node a command speaks to."""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass

from node import layers
from node.client import tls_of, url_of
from node.errors import OperatorError


@dataclass(frozen=True, slots=True)
class Target:
    """Which node to ask."""

    url: str
    api_key: str | None
    tls: ssl.SSLContext | None


def add_target(parser: argparse.ArgumentParser) -> None:
    """The flags that name it."""
    parser.add_argument("--url", help="address of the node (default: the one that the settings describe)")
    parser.add_argument("--api-key", metavar="KEY", help="bearer key (default: server.api_keys, for the own node only)")


def target(url: str | None, api_key: str | None) -> Target:
    """The node to ask; the settings' key and certificate are for the settings' own address only."""
    server = layers.load().server
    own = url_of(server)
    if url is not None and url.rstrip("/").removesuffix("/v1") != own:
        return Target(url, api_key, None)
    if server.port == 0:
        raise OperatorError("server.port is 0, so the node's port is not known here.", hint="Name it with --url.")
    return Target(own, api_key or next(iter(server.api_keys), None), tls_of(server))
