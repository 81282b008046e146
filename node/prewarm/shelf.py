"""The folder of state files: which prefixes are on disk, what they cover together, and how many bytes they take.

A file holds a prefix from its first block, or from a later one where other files have what comes before: a longer
prefix stores only its new part. What a prompt can be given is the longest chain of files that begin where the one
before has not ended. A file stays as long as another one builds on it.

The index lives in memory and belongs to one thread; reading and writing files (`states`) may be done in others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from node.engine.blocks import BLOCK, Ids, Owner, common_length
from node.prewarm import states
from node.prewarm.states import Damaged, StateFile

log = logging.getLogger(__name__)


class Link(NamedTuple):
    """Blocks to take from one file: those that hold tokens from `start` up to `end`."""

    file: StateFile
    start: int
    end: int


class Shelf:
    """State files of one fingerprint in one folder."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        self.files: list[StateFile] = []

    @property
    def bytes(self) -> int:
        """What all files take."""
        return sum(file.bytes for file in self.files)

    def open(self) -> None:
        """Find what is there; foreign, damaged and half-written files are removed. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        states.sweep(self.folder)
        foreign = 0
        for path in sorted(self.folder.glob(f"*{states.SUFFIX}")):
            try:
                file = states.read_header(path)
            except Damaged as error:
                discard(path, str(error))
                continue
            if file.fingerprint == self.fingerprint:
                self.files.append(file)
            else:
                path.unlink(missing_ok=True)
                foreign += 1
        if foreign:
            log.warning("state files of another model or configuration were removed", extra={"files": foreign})

    def chain(self, owner: Owner, ids: Ids, *, without: StateFile | None = None) -> list[Link]:
        """Where to take the states of the longest prefix of `ids` from, in order."""
        matches = [
            (file, common_length(file.ids, ids))
            for file in self.files
            if file is not without and file.owner in (None, owner)
        ]
        links: list[Link] = []
        reached = 0
        while True:
            at = reached // BLOCK * BLOCK
            fitting = [(alike, file) for file, alike in matches if file.start <= at and alike > reached]
            if not fitting:
                return links
            if links and reached > at:  # the block that the last one ends in comes from the next one
                links[-1] = links[-1]._replace(end=at)
            reached, file = max(fitting, key=lambda fit: fit[0])
            links.append(Link(file, at, reached))

    def length(self, owner: Owner, ids: Ids) -> int:
        """How many tokens of `ids` are on disk."""
        links = self.chain(owner, ids)
        return links[-1].end if links else 0

    def new_part(self, owner: Owner, ids: Ids) -> int:
        """From which token on a file for `ids` has to hold states."""
        return self.length(owner, ids) // BLOCK * BLOCK

    def has(self, owner: Owner, ids: Ids) -> bool:
        """Whether all of `ids` is on disk."""
        return self.length(owner, ids) == len(ids)

    def add(self, file: StateFile) -> None:
        """A file was written."""
        self.files.append(file)

    def drop(self, file: StateFile) -> None:
        """Forget and remove a file. What builds on it is of no use any more, and goes too."""
        self.files.remove(file)
        file.path.unlink(missing_ok=True)
        for other in [other for other in self.files if other.start and not self._usable(other)]:
            if other in self.files:
                self.drop(other)

    def surplus(self, wanted: Iterable[tuple[Owner, Ids]]) -> list[StateFile]:
        """Files that no wanted prefix needs."""
        needed = {id(link.file) for owner, ids in wanted for link in self.chain(owner, ids)}
        return [file for file in self.files if id(file) not in needed]

    def clear(self) -> None:
        """Remove every file."""
        for file in self.files:
            file.path.unlink(missing_ok=True)
        self.files = []

    def _usable(self, file: StateFile) -> bool:
        links = self.chain(file.owner, file.ids[: file.start], without=file)
        return bool(links) and links[-1].end == file.start


def discard(path: Path, why: str) -> None:
    """Remove a file that is not to be trusted, and say so."""
    log.warning("a state file was removed; its prefix is read again", extra={"file": path.name, "reason": why})
    path.unlink(missing_ok=True)
