"""What an operator may name, and what stands above the choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import Conflict, InvalidRequest, ModelNotFound, NotFound
from node.fleet.apply import Terms
from node.fleet.boot import over
from node.fleet.choice import choose
from node.fleet.profile import Profile
from node.models import catalog
from node.settings import Settings
from tests.conftest import DEFAULT_MODEL, settings
from tests.support.fleet_node import profile

STARTED = settings(engine_kind="echo")
TERMS = Terms(STARTED, over(STARTED))


def test_a_profile_that_comes_with_the_program() -> None:
    assert choose("", "dev-cpu", None, TERMS).name == "dev-cpu"


@pytest.mark.parametrize(
    ("model", "name", "error"),
    [
        ("", "", InvalidRequest),
        ("a", "b", InvalidRequest),
        ("../../etc/passwd", "", InvalidRequest),
        ("", "/etc/passwd.toml", InvalidRequest),
        ("x.gguf/../y", "", InvalidRequest),
        ("", "dev-gpu", NotFound),
        ("no-such-model", "", ModelNotFound),
    ],
)
def test_what_is_no_name_or_names_nothing_is_refused(model: str, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        choose(model, name, None, TERMS)


def test_a_model_that_was_not_fetched_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    with pytest.raises(ModelNotFound) as told:
        choose(DEFAULT_MODEL, "", None, TERMS)
    assert told.value.hint == f"outpost models pull {DEFAULT_MODEL}"


@pytest.mark.model
def test_a_model_takes_the_place_of_the_profile_s(weights: Path) -> None:
    serving = profile(
        "mine", slots=3, more="[settings.queue]\nmax_waiting = 5\n[settings.websocket]\nheartbeat_s = 9.5\n"
    )
    chosen = choose(DEFAULT_MODEL, "", serving, TERMS)
    assert chosen.name == f"local-{DEFAULT_MODEL}"
    assert chosen.model_sha256 == catalog.load().find(DEFAULT_MODEL).sha256
    assert (chosen.settings.engine.slots, chosen.settings.queue.max_waiting) == (3, 5)
    assert chosen.layer["websocket"] == {"heartbeat_s": 9.5}
    assert choose(DEFAULT_MODEL, "", None, TERMS).layer == {"model": {"name": DEFAULT_MODEL}}


@pytest.mark.model
def test_what_this_node_says_itself_stands_above(weights: Path) -> None:
    def mine(profile: Profile | None) -> Settings:
        return settings(model_name="mine.gguf")

    with pytest.raises(Conflict, match=r"mine\.gguf"):
        choose(DEFAULT_MODEL, "", None, Terms(mine(None), mine))

    def impossible(profile: Profile | None) -> Settings:
        return settings(engine_batch=64, engine_slots=100)

    with pytest.raises(Conflict, match="go together"):
        choose("", "dev-cpu", None, Terms(STARTED, impossible))
