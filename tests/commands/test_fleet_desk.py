"""What the manager's commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from node.commands.fleet_desk import add_desk, key_folder, keyring, passphrase, publication, repository
from node.errors import OperatorError
from node.fleet import keys


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_desk(parser)
    return parser.parse_args(words)


def test_where_things_are(tmp_path: Path) -> None:
    args = parsed("--folder", str(tmp_path))
    assert (repository(args), key_folder(args)) == (tmp_path / "repository", tmp_path / "keys")
    with pytest.raises(OperatorError, match="holds no fleet's repository"):
        publication(args)


def test_all_keys_of_the_folder_or_those_that_are_named(tmp_path: Path) -> None:
    made = [keys.make(tmp_path / "keys" / f"{name}.pem") for name in "ab"]
    assert [key.public_key for key in keyring(parsed("--folder", str(tmp_path))).signers] == [
        key.public_key for key in made
    ]
    one = keyring(parsed("--folder", str(tmp_path), "--key", str(tmp_path / "keys" / "b.pem")))
    assert [key.public_key for key in one.signers] == [made[1].public_key]


def test_a_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTPOST_PASSPHRASE", raising=False)
    assert passphrase(parsed()) is None
    monkeypatch.setenv("OUTPOST_PASSPHRASE", "a")
    assert passphrase(parsed()) == b"a"
    (tmp_path / "secret").write_text("b\n")
    assert passphrase(parsed("--passphrase-file", str(tmp_path / "secret"))) == b"b"
    with pytest.raises(OperatorError, match="Cannot read"):
        passphrase(parsed("--passphrase-file", str(tmp_path / "none")))
