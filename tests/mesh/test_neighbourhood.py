"""The contract is kept by a fake that other rooms' tests may use."""

from __future__ import annotations

import aiohttp
import pytest

from node.errors import Unavailable
from node.mesh.neighbourhood import Neighbourhood
from tests.mesh.sights import Fixed, sight


async def test_the_fake_keeps_the_contract() -> None:
    around: Neighbourhood = Fixed("a" * 16, [sight("b" * 16), sight("c" * 16)])
    assert around.id == "a" * 16
    assert [neighbour.id for neighbour in around.candidates()] == ["b" * 16, "c" * 16]
    assert isinstance(around.session("b" * 16), aiohttp.ClientSession)
    around.doubt("b" * 16, "it broke")
    assert [neighbour.id for neighbour in around.candidates()] == ["c" * 16]
    with pytest.raises(Unavailable):
        around.session("d" * 16)
    await around.close()  # type: ignore[attr-defined]
