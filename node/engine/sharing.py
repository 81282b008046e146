"""Which sequences of a KV cache share cells; pure. A cell that several sequences use is there once.

Sequences share what they begin with: each one borrows its first tokens from at most one other, its lender. When a
lender leaves, the cells stay with those who borrowed them: the one that borrowed most takes its place.
"""

from __future__ import annotations


class Sharing:
    """Slots that borrow from slots."""

    def __init__(self) -> None:
        self._loans: dict[int, tuple[int, int]] = {}  # borrower -> lender, tokens

    @property
    def saved(self) -> int:
        """Cells that are counted more than once when every sequence counts all of its own."""
        return sum(tokens for _, tokens in self._loans.values())

    def borrow(self, borrower: int, lender: int, tokens: int) -> None:
        """`borrower`, which held nothing, begins with the first `tokens` of `lender`."""
        self._loans[borrower] = lender, tokens

    def leave(self, slot: int) -> None:
        """The slot gave up what it held; others keep what they borrowed from it."""
        own = self._loans.pop(slot, None)
        borrowers = sorted((tokens, one) for one, (lender, tokens) in self._loans.items() if lender == slot)
        if not borrowers:
            return
        most, heir = borrowers.pop()
        del self._loans[heir]
        if own is not None:
            lender, tokens = own
            self._loans[heir] = lender, min(tokens, most)
        for tokens, one in borrowers:
            self._loans[one] = heir, tokens
