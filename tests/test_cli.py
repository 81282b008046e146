"""The command line's frame: help, exit codes, errors with their remedy."""

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
