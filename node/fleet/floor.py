"""What this node has seen and will never go back behind: versions of the fleet's metadata, and the time.

It stands in the database, apart from the metadata's files, because a power cut may take those: a node that lost its
timestamp and its snapshot together would believe an old repository.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlite_utils

from node.store.db import MIGRATIONS, Database

_TIME, _RESET = "time", "reset"


@dataclass(frozen=True, slots=True)
class Floor:
    """The least versions by role, the least time (seconds since 1970), and the last reset of the time."""

    versions: Mapping[str, int] = field(default_factory=dict)
    time: float = 0.0
    reset: int = 0


@MIGRATIONS()
def m010_fleet_floor(db: sqlite_utils.Database) -> None:
    """Least versions of the fleet's metadata by role, and least times."""
    db.execute("CREATE TABLE fleet_versions (role TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID")
    db.execute("CREATE TABLE fleet_times (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID")


class FloorStore:
    """Keeps the floor in a database, which must be one that survives power cuts (`sync="FULL"`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Floor:
        """What was kept; raises StoreFailed."""
        return await self._database.run(_read)

    async def lift(self, versions: Mapping[str, int], time: float) -> None:
        """Raise what is lower; nothing falls. Raises StoreFailed."""
        await self._database.run(lambda db: _lift(db, versions, time))

    async def reset_time(self, revision: int, time: float) -> None:
        """Let the time fall, once for each revision. Raises StoreFailed."""
        await self._database.run(lambda db: _reset(db, revision, time))


def _read(db: sqlite3.Connection) -> Floor:
    versions = dict(db.execute("SELECT role, version FROM fleet_versions").fetchall())
    times = dict(db.execute("SELECT name, value FROM fleet_times").fetchall())
    return Floor(versions, times.get(_TIME, 0.0), int(times.get(_RESET, 0)))


def _lift(db: sqlite3.Connection, versions: Mapping[str, int], time: float) -> None:
    db.executemany(
        "INSERT INTO fleet_versions VALUES (?, ?) ON CONFLICT (role) DO UPDATE SET version = max(version, ?2)",
        versions.items(),
    )
    db.execute(
        "INSERT INTO fleet_times VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = max(value, ?2)", (_TIME, time)
    )


def _reset(db: sqlite3.Connection, revision: int, time: float) -> None:
    if revision > _read(db).reset:
        db.execute("INSERT OR REPLACE INTO fleet_times VALUES (?, ?)", (_RESET, revision))
        db.execute("INSERT OR REPLACE INTO fleet_times VALUES (?, ?)", (_TIME, time))
