"""The manager's commands from an empty folder to nodes that obey, as the README has them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from node.cli import main
from node.fleet import keys, places
from node.fleet.publish import Publication, today
from node.fleet.trust import Trust
from node.settings import Fleet
from node.store.db import Database
from tests.support.model_files import digest, gguf


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OUTPOST_PASSPHRASE", raising=False)
    assert main(["fleet", "init"]) == 0
    return tmp_path


def profile(folder: Path, slots: int = 3, model: Path | None = None) -> Path:
    path = folder / "kiosk.toml"
    named = f'model_sha256 = "{digest(model)}"\n' if model else ""
    path.write_text(f'name = "kiosk"\ndescription = "A kiosk"\n{named}[settings.engine]\nslots = {slots}\n')
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_init_makes_keys_that_nobody_else_may_read(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "init", "--folder", "other"]) == 0
    names = {path.name for path in (desk / "keys").iterdir()}
    assert names == {"root-1.pem", "root-2.pem", "root-3.pem", "profiles.pem", "online.pem"}
    for path in (desk / "keys").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "1.root.json" in capsys.readouterr().out
    assert main(["fleet", "init"]) == 1
    assert "already" in capsys.readouterr().err


async def test_from_an_empty_folder_to_a_node(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = gguf(desk / "model.gguf", blocks=2)
    assert main(["fleet", "add", str(profile(desk, model=model)), "--model", str(model)]) == 0
    assert " chunks, " in capsys.readouterr().out
    assert digest(desk / "repository" / places.model_file(digest(model))) == digest(model)
    assert main(["fleet", "rollout", "spring", "--profile", "kiosk", "--percent", "10"]) == 0
    assert "for 10 % of the nodes" in capsys.readouterr().out
    database = Database(desk / "fleet.db", "FULL")
    await database.open()
    try:
        root = desk / "repository" / "metadata" / "1.root.json"
        trust = Trust(Fleet(url=str(desk / "repository"), root=str(root)), database, desk / "node")
        (rollout,) = (await trust.refresh()).rollouts
        assert (rollout.name, rollout.percent) == ("spring", 10.0)
        assert (await trust.profile(rollout)).settings.engine.slots == 3
        assert (await trust.index(digest(model))).size == model.stat().st_size
    finally:
        await database.close()


def test_a_dry_run_writes_nothing(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = gguf(desk / "model.gguf", blocks=1)
    before = files(desk)
    assert main(["fleet", "add", str(profile(desk, model=model)), "--model", str(model), "--dry-run"]) == 0
    assert main(["fleet", "sign", "--dry-run"]) == 0
    assert "Nothing is written" in capsys.readouterr().out
    assert files(desk) - before == {"kiosk.toml"}


def test_a_file_that_is_not_the_profiles_is_refused(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, other = gguf(desk / "model.gguf", blocks=1), gguf(desk / "other.gguf", blocks=1, seed=2)
    assert main(["fleet", "add", str(profile(desk, model=model)), "--model", str(other)]) == 1
    assert "is not the file that the profile" in capsys.readouterr().err
    assert not list((desk / "repository" / "models").glob("*")) if (desk / "repository" / "models").exists() else True
    assert main(["fleet", "add", str(profile(desk)), "--model", str(model)]) == 1
    assert "names no model_sha256" in capsys.readouterr().err


def test_a_profile_with_a_path_is_not_signed(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = desk / "a.toml"
    path.write_text('name = "a"\ndescription = "b"\n[settings.model]\nname = "../../x.gguf"\n')
    assert main(["fleet", "add", str(path)]) == 1
    assert "may not name a path" in capsys.readouterr().err


def test_signing_again_with_the_online_key_alone(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("root-1", "root-2", "root-3", "profiles"):
        (desk / "keys" / f"{name}.pem").rename(desk / f"{name}.pem")  # kept elsewhere
    assert main(["fleet", "sign", "--online"]) == 0
    assert capsys.readouterr().out.startswith("Signed: timestamp.json")
    assert Publication(desk / "repository", today()).version("timestamp") == 2
    assert main(["fleet", "sign", "--reset-time"]) == 1
    assert "root (2 more)" in capsys.readouterr().err
    assert (
        main(["fleet", "sign", "--reset-time", *named(desk, "root-1", "root-3"), *named(desk / "keys", "online")]) == 0
    )
    assert Publication(desk / "repository", today()).version("root") == 2


def test_a_profile_is_withdrawn_with_the_rollouts_that_choose_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "add", str(profile(desk, slots=3))]) == 0
    assert main(["fleet", "rollout", "spring", "--profile", "kiosk"]) == 0
    assert main(["fleet", "add", str(profile(desk, slots=4))]) == 0
    capsys.readouterr()
    assert main(["fleet", "withdraw", "kiosk"]) == 1
    assert "2 signed profiles are called kiosk" in capsys.readouterr().err
    (rollout,) = Publication(desk / "repository", today()).rollouts()
    assert main(["fleet", "withdraw", rollout.profile_sha256[:12]]) == 0
    assert "spring, which chose it, goes with it" in capsys.readouterr().out
    assert main(["fleet", "rollout", "summer", "--profile", "kiosk"]) == 0
    assert main(["fleet", "withdraw", "nobody"]) == 1


def named(folder: Path, *names: str) -> list[str]:
    return [word for name in names for word in ("--key", str(folder / f"{name}.pem"))]


@pytest.mark.parametrize("role", ["root", "profiles", "online"])
def test_a_key_can_be_replaced(desk: Path, capsys: pytest.CaptureFixture[str], role: str) -> None:
    old = desk / "keys" / ("root-1.pem" if role == "root" else f"{role}.pem")
    assert main(["fleet", "key", role, "--old", str(old), "--new", "new.pem", "--dry-run"]) == 0
    assert not (desk / "new.pem").exists()
    assert main(["fleet", "key", role, "--old", str(old), "--new", "new.pem"]) == 0
    assert "Destroy the old" in capsys.readouterr().out
    gone = keys.read(old).public_key.keyid
    old.unlink()
    (desk / "new.pem").rename(old)
    assert main(["fleet", "add", str(profile(desk))]) == 0
    assert main(["fleet", "key", role, "--old", gone, "--new", "again.pem"]) == 1
    assert f"is no {role} key" in capsys.readouterr().err
    assert not (desk / "again.pem").exists()


def test_a_key_without_enough_others_is_not_made(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = named(desk / "keys", "root-1", "online", "profiles")
    assert main(["fleet", "key", "root", "--old", "keys/root-1.pem", "--new", "new.pem", *alone]) == 1
    assert "Not enough keys" in capsys.readouterr().err
    assert not (desk / "new.pem").exists()


def test_a_passphrase_from_a_file_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    folder = ["--folder", str(tmp_path / "desk")]
    assert main(["fleet", "init", *folder, "--passphrase-file", str(tmp_path / "secret")]) == 0
    assert main(["fleet", "sign", "--online", *folder]) == 1
    assert "OUTPOST_PASSPHRASE" in capsys.readouterr().err
    monkeypatch.setenv("OUTPOST_PASSPHRASE", "open sesame")
    assert main(["fleet", "sign", "--online", *folder]) == 0


def test_a_root_key_against_quantum_computers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fleet", "init", "--folder", str(tmp_path / "desk"), "--ml-dsa"])
    if code:
        pytest.skip(capsys.readouterr().err)
    with_it = [*named(tmp_path / "desk" / "keys", "root-2", "root-3", "online")]
    assert main(["fleet", "sign", "--reset-time", "--folder", str(tmp_path / "desk"), *with_it]) == 0
