"""Names of targets, and who may sign for them."""

from __future__ import annotations

import pytest

from node.fleet import places

SHA = "ab" * 32


def test_names() -> None:
    assert places.profile_target("kiosk", SHA) == "profiles/kiosk-abababababababab.toml"
    assert places.index_target(SHA) == f"indexes/{SHA}.json"
    assert places.rollout_target("first") == "rollouts/first.json"
    assert places.target_file("rollouts/first.json", SHA) == f"targets/rollouts/{SHA}.first.json"
    assert places.model_file(SHA) == f"models/{SHA}.gguf"
    assert places.chunk_file(SHA) == f"chunks/{SHA}.zst"


@pytest.mark.parametrize(
    ("role", "target", "may"),
    [
        ("profiles", places.profile_target("a", SHA), True),
        ("profiles", places.index_target(SHA), True),
        ("profiles", "rollouts/a.json", False),
        ("rollouts", "rollouts/a.json", True),
        ("rollouts", "profiles/a-0.toml", False),
        ("rollouts", "indexes/a.json", False),
        ("rollouts", "rollouts/../profiles/a", False),
        ("rollouts", "rollouts/..", False),
        ("rollouts", "rollouts/a/b", False),
        ("rollouts", "rollouts/", False),
        ("rollouts", "/rollouts/a", False),
        ("rollouts", "rollouts/a\n", False),
        ("rollouts", "rollouts/A", False),
        ("rollouts", "rollouts/a%2f..", False),
        ("rollouts", "rollouts/" + "a" * 200, False),
        ("profiles", "", False),
    ],
)
def test_who_may_sign(role: str, target: str, may: bool) -> None:
    assert places.may_sign(role, target) is may
