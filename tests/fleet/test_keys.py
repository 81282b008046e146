"""Key files: secret, never overwritten, with a passphrase or without."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from node.errors import OperatorError
from node.fleet import keys


def test_a_key_comes_back_and_is_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "root-1.pem"
    made = keys.make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.read(path).public_key == made.public_key
    assert b"ENCRYPTED" not in path.read_bytes()


def test_two_keys_differ(tmp_path: Path) -> None:
    assert keys.make(tmp_path / "a").public_key.keyid != keys.make(tmp_path / "b").public_key.keyid


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    keys.make(tmp_path / "a")
    with pytest.raises(OperatorError, match="never overwritten"):
        keys.make(tmp_path / "a")


def test_a_passphrase(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = keys.make(path, b"open sesame")
    assert b"ENCRYPTED" in path.read_bytes()
    assert keys.read(path, b"open sesame").public_key == made.public_key
    for wrong in (None, b"", b"open barley"):
        with pytest.raises(OperatorError):
            keys.read(path, wrong)
    plain = tmp_path / "b"
    keys.make(plain)
    with pytest.raises(OperatorError, match="not encrypted"):
        keys.read(plain, b"x")


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    keys.make(path)
    path.chmod(0o640)
    with pytest.raises(OperatorError, match="others may read") as refused:
        keys.read(path)
    assert refused.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("body", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(body)
    path.chmod(0o600)
    with pytest.raises(OperatorError, match="cannot be used"):
        keys.read(path)
    with pytest.raises(OperatorError, match="Cannot read"):
        keys.read(tmp_path / "none")


def test_a_key_that_withstands_quantum_computers_signs(tmp_path: Path) -> None:
    try:
        made = keys.make(tmp_path / "a", kind="ml-dsa-65")
    except OperatorError as error:
        pytest.skip(error.message)
    signature = keys.read(tmp_path / "a").sign(b"x")
    made.public_key.verify_signature(signature, b"x")
