"""The command line's frame: help, exit codes, errors with their remedy."""

import shlex
import subprocess
import sys

import pytest

from node import cli
from node.errors import PullError, SettingsError


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Make `outpost doctor` raise."""

    def make(error: BaseException) -> None:
        def run(args: object) -> int:
            raise error

        monkeypatch.setattr("node.commands.doctor.run", run)

    return make


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    assert "usage: outpost" in capsys.readouterr().out


def test_wrong_use_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert cli.main(["fly"]) == 2
    assert cli.main(["serve", "--set", "x"]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("outpost ")


def test_errors_end_with_their_code_and_hint(raising, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    raising(PullError("no space", hint="free some"))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "outpost: no space\n  free some\n"
    raising(SettingsError("bad key"))
    assert cli.main(["doctor"]) == 2
    raising(KeyboardInterrupt())
    assert cli.main(["doctor"]) == 130


def test_what_the_machine_refuses_is_told_in_a_line(raising, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    raising(OSError(30, "Read-only file system", "/ro/mesh"))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "outpost: [Errno 30] Read-only file system: '/ro/mesh'\n"
    raising(TimeoutError())
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "outpost: TimeoutError\n"


def test_an_interrupt_while_the_verbs_are_imported_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert cli.main(["doctor"]) == 130


@pytest.mark.parametrize("redirected", [">&-", ">/dev/full", "2>&- >&-"])
def test_output_that_goes_nowhere_is_no_crash(redirected: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m node profile list {redirected}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if "full" in redirected else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
