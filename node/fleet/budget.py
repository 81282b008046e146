"""What a way may cost: bytes in all, and bytes a second. Pure: the time comes in."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """`limit` is the most bytes in all, `rate` the most a second; 0 is no limit. `spent` outlives a restart."""

    limit: int = 0
    rate: int = 0
    metered: bool = False
    spent: int = 0
    _free_at: float = field(default=0.0, repr=False)

    def affords(self, bytes_: int) -> bool:
        """Whether so many bytes more would be within the limit."""
        return not self.limited or self.spent + bytes_ <= self.limit

    @property
    def limited(self) -> bool:
        """Whether there is a limit; a metered way always has one, and 0 then means nothing at all."""
        return self.metered or self.limit > 0

    def spend(self, bytes_: int, now: float) -> float:
        """So many bytes have come; returns the seconds to wait before more are read."""
        self.spent += bytes_
        if not self.rate:
            return 0.0
        self._free_at = max(self._free_at, now) + bytes_ / self.rate
        return max(0.0, self._free_at - now)
