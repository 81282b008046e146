"""A fleet for tests: an authority, and nodes that it vouches for, each in a folder."""

from __future__ import annotations

import datetime
from pathlib import Path

from node.mesh import authority, identity
from node.mesh.authority import Authority
from node.mesh.identity import Identity

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
MONTH = datetime.timedelta(days=30)


def make_authority(folder: Path, name: str = "test") -> Authority:
    """A fresh authority whose certificate is valid in real time, too."""
    return authority.create(folder, name, min(NOW, datetime.datetime.now(datetime.UTC)))


def enrolled(
    maker: Authority, folder: Path, name: str, now: datetime.datetime | None = None, lasts: datetime.timedelta = MONTH
) -> Identity:
    """A node of this fleet, by the way on which its key never leaves it."""
    now = now or datetime.datetime.now(datetime.UTC)
    bundle, _ = maker.issue(name, identity.make_request(folder), lasts, now)
    return identity.enrol(folder, bundle, now)
