"""The journal of one generation: numbered entries, and which of them may be read.

An entry is a token and the text that became certain with it; numbers count from 0 without a gap. Readers see an entry
only once it is `stored`: for a durable journal that is after the store's commit, so that no client is ever ahead of
what a restart will find. A journal that is not durable shows everything at once.

A journal keeps texts and tokens in two rows: of entries there are hundreds in every answer, and each of them costs its
token and two places this way, not an object more. Entries are made for who reads them.

What was `evicted` from memory is an error of its own, never a silent gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from node.generation import Entry, Token


class Evicted(Exception):  # the reader's question decides what error this becomes
    """The entries from the asked number on are not all there any more; `first` is the lowest kept."""

    def __init__(self, first: int) -> None:
        super().__init__(f"entries before {first} were evicted")
        self.first = first


class Journal:
    """Entries of one generation. `count` were written, `visible` of them may be read, those before `first` are gone."""

    def __init__(self, *, durable: bool = False, entries: Iterable[Entry] = ()) -> None:
        self._durable = durable
        self._texts: list[str] = []
        self._tokens: list[Token | None] = []
        self.first = self.visible = 0
        for entry in entries:
            self.append(entry.text, entry.token)
        self._unsent = self.visible = self.count

    @property
    def count(self) -> int:
        return self.first + len(self._texts)

    def append(self, text: str, token: Token | None) -> int:
        """Write an entry; returns its number."""
        self._texts.append(text)
        self._tokens.append(token)
        if not self._durable:
            self.visible = self.count
        return self.count - 1

    def read(self, number: int, end: int | None = None) -> Sequence[Entry]:
        """The visible entries from `number` on and before `end`; raises Evicted when they begin later than that."""
        if number < self.first:
            raise Evicted(self.first)
        return self._between(number, self.visible if end is None else min(end, self.visible))

    def unsent(self) -> tuple[int, Sequence[Entry]]:
        """What was not given to the store yet: its first number and the entries. They count as given from now on."""
        number = self._unsent
        self._unsent = self.count
        return number, self._between(number, self.count)

    def _between(self, start: int, end: int) -> list[Entry]:
        rows = slice(start - self.first, end - self.first)
        return list(map(Entry, self._texts[rows], self._tokens[rows]))

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
            del self._texts[: number - self.first]
            del self._tokens[: number - self.first]
            self.first = number
