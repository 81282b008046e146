"""The tree at the head of the module is the truth, and every kind is one of the fleet's errors."""

from __future__ import annotations

import re

from node.errors import FetchError, FleetError, TrustError, Unreachable
from node.fleet import refusal


def test_the_printed_tree_names_every_kind() -> None:
    printed = set(re.findall(r"[├└]── (\w+) ", refusal.__doc__ or ""))
    kinds = {
        name for name, kind in vars(refusal).items() if isinstance(kind, type) and kind.__module__ == refusal.__name__
    }
    assert printed == kinds


def test_each_is_one_of_four() -> None:
    for kind in vars(refusal).values():
        if isinstance(kind, type) and kind.__module__ == refusal.__name__:
            assert issubclass(kind, TrustError | Unreachable | FetchError)
            assert issubclass(kind, FleetError)
            assert kind("x").exit_code == 1
    assert issubclass(refusal.TornMemory, refusal.OldRepository)
