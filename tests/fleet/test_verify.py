"""The model's file against the profile's SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from node.errors import ModelFileError, SettingsError
from node.fleet.profile import Profile, parse
from node.fleet.verify import refuse_other_model
from node.models import catalog
from node.settings import Model, Settings
from tests.models.support import gguf_bytes, silent

CONTENT = gguf_bytes()
DEFAULT = catalog.load().default


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))


def profile(name: str, sha256: str, kind: str = "llama") -> Profile:
    text = f'name = "p"\ndescription = "d"\nmodel_sha256 = "{sha256}"\n'
    return parse(f'{text}[settings.model]\nname = "{name}"\n[settings.engine]\nkind = "{kind}"\n', "p")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    return tmp_path / "m.gguf"


def test_a_file_that_is_the_one(model: Path) -> None:
    wanted = profile(str(model), hashlib.sha256(CONTENT).hexdigest())
    told = []
    assert refuse_other_model(wanted, wanted.settings, lambda *step: told.append(step))
    assert told[-1][1:] == (len(CONTENT), len(CONTENT))


def test_a_file_that_is_another_one(model: Path) -> None:
    wanted = profile(str(model), "0" * 64)
    with pytest.raises(ModelFileError, match="is not the file that the profile p wants") as error:
        refuse_other_model(wanted, wanted.settings, silent)
    assert hashlib.sha256(CONTENT).hexdigest() in error.value.message


def test_nothing_to_compare(model: Path) -> None:
    other = profile(str(model), "0" * 64)
    assert not refuse_other_model(other, Settings(model=Model(name="else")), silent)  # this node's own choice
    assert not refuse_other_model(profile(str(model), ""), profile(str(model), "").settings, silent)
    echo = profile(str(model), "0" * 64, "echo")
    assert not refuse_other_model(echo, echo.settings, silent)


def test_the_catalogue_must_mean_the_same_file() -> None:
    wanted = profile(DEFAULT.id, "0" * 64)
    with pytest.raises(SettingsError, match="another file than the catalogue"):
        refuse_other_model(wanted, wanted.settings, silent)


def test_a_model_of_the_catalogue_must_be_installed() -> None:
    wanted = profile(DEFAULT.id, DEFAULT.sha256)
    with pytest.raises(ModelFileError, match="not installed"):
        refuse_other_model(wanted, wanted.settings, silent)


def test_what_was_fetched_is_hashed_again_only_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    with (folder / DEFAULT.file).open("wb") as file:
        file.truncate(DEFAULT.size)  # the right size, all zeros
    wanted = profile(DEFAULT.id, DEFAULT.sha256)
    assert refuse_other_model(wanted, wanted.settings, silent)
    with pytest.raises(ModelFileError, match="SHA-256 differs"):
        refuse_other_model(wanted, wanted.settings, silent, thorough=True)
