"""The journal of one generation: numbered entries, and which of them may be read.

An entry is a token and the text that became certain with it; numbers count from 0 without a gap. Readers see an entry
only once it is `stored`: for a durable journal that is after the store's commit, so that no client is ever ahead of
what a restart will find. A journal that is not durable shows everything at once.

What was `evicted` from memory is an error of its own, never a silent gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from node.generation import Entry


class Evicted(Exception):  # the reader's question decides what error this becomes
    """The entries from the asked number on are not all there any more; `first` is the lowest kept."""

    def __init__(self, first: int) -> None:
        super().__init__(f"entries before {first} were evicted")
        self.first = first


class Journal:
    """Entries of one generation. `count` were written, `visible` of them may be read, those before `first` are gone."""

    def __init__(self, *, durable: bool = False, entries: Iterable[Entry] = ()) -> None:
        self._durable = durable
        self._entries = list(entries)
        self._unsent = len(self._entries)
        self.first = 0
        self.visible = len(self._entries)

    @property
    def count(self) -> int:
        return self.first + len(self._entries)

    def append(self, entry: Entry) -> int:
        """Write an entry; returns its number."""
        self._entries.append(entry)
        if not self._durable:
            self.visible = self.count
        return self.count - 1

    def read(self, number: int) -> Sequence[Entry]:
        """All visible entries from `number` on; raises Evicted when they begin later than that."""
        if number < self.first:
            raise Evicted(self.first)
        return self._entries[number - self.first : self.visible - self.first]

    def unsent(self) -> tuple[int, Sequence[Entry]]:
        """What was not given to the store yet: its first number and the entries. They count as given from now on."""
        number = self._unsent
        self._unsent = self.count
        return number, self._entries[number - self.first :]

    def unstored(self, number: int) -> None:
        """The store failed from `number` on: what was given to it is given again with what comes next."""
        self._unsent = max(self.first, min(self._unsent, number))

    def stored(self, count: int) -> None:
        """The store has committed the first `count` entries: they may be read."""
        self.visible = max(self.visible, min(count, self.count))

    def evict(self, number: int) -> None:
        """Forget entries before `number`, as far as they are visible and, where durable, stored."""
        number = min(number, self.visible, self._unsent if self._durable else self.count)
        self._unsent = max(self._unsent, number)
        if number > self.first:
            del self._entries[: number - self.first]
            self.first = number
