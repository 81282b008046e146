from __future__ import annotations

import random
import ssl
import urllib.error
from pathlib import Path

import pytest

from node.errors import PullError
from node.models import download
from node.models.partial import OverLimit, Partial
from node.models.sources import LocalFile, Web
from tests.models.support import Habits, serving, silent

CONTENT = random.Random(7).randbytes(300_000)


def partial_in(folder: Path, limit: int = len(CONTENT)) -> Partial:
    return Partial(folder / "m.part", limit=limit, sha256="ab" * 32)


def fetch(habits: Habits, folder: Path, limit: int = len(CONTENT)) -> tuple[bytes, list[float]]:
    """Fetch from such a server; gives the bytes and the pauses that were taken."""
    pauses: list[float] = []
    with serving(habits) as url, partial_in(folder, limit) as partial:
        download.fetch(Web(url), partial, silent, pause=pauses.append)
        return (folder / "m.part").read_bytes(), pauses


def test_a_file_comes_whole_and_tells_how_far_it_is(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with serving(Habits(CONTENT)) as url, partial_in(tmp_path) as partial:
        download.fetch(Web(url), partial, lambda *state: seen.append(state))
    assert (tmp_path / "m.part").read_bytes() == CONTENT
    assert seen[-1] == ("fetching", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_broken_connection_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    habits = Habits(CONTENT, cut_after=[100_000, 50_000])
    content, pauses = fetch(habits, tmp_path)
    assert content == CONTENT
    assert pauses == [1.0, 1.0]  # each try got further, so that patience begins anew
    assert [headers.get("Range") for headers in habits.seen] == [None, "bytes=100000-", "bytes=150000-"]
    assert [headers.get("If-Range") for headers in habits.seen] == [None, '"one"', '"one"']


def test_a_server_without_ranges_begins_anew(tmp_path: Path) -> None:
    content, _ = fetch(Habits(CONTENT, cut_after=[100_000], knows_ranges=False), tmp_path)
    assert content == CONTENT


def test_a_file_that_changed_meanwhile_begins_anew(tmp_path: Path) -> None:
    habits = Habits(bytes(len(CONTENT)), cut_after=[100_000])

    def change(_: float) -> None:
        habits.content, habits.etag = CONTENT, '"two"'

    with serving(habits) as url, partial_in(tmp_path) as partial:
        download.fetch(Web(url), partial, silent, pause=change)
    assert (tmp_path / "m.part").read_bytes() == CONTENT


def test_a_server_that_answers_another_range_is_not_believed(tmp_path: Path) -> None:
    content, _ = fetch(Habits(CONTENT, cut_after=[100_000], shifted=True), tmp_path)
    assert content == CONTENT


def test_it_gives_up_after_four_tries_without_a_byte_and_keeps_what_it_has(tmp_path: Path) -> None:
    habits = Habits(CONTENT, cut_after=[100_000, 0, 0, 0, 0])
    with pytest.raises(PullError, match="stopped after 100,000 bytes: the connection closed") as caught:
        fetch(habits, tmp_path)
    assert "goes on from there" in str(caught.value.hint)
    assert (tmp_path / "m.part").stat().st_size == 100_000


def test_errors_that_pass_are_waited_out(tmp_path: Path) -> None:
    content, pauses = fetch(Habits(CONTENT, statuses=[503, 429, 500]), tmp_path)
    assert (content, pauses) == (CONTENT, [1.0, 2.0, 4.0])


@pytest.mark.parametrize("status", [404, 403, 410])
def test_errors_that_stay_are_told_at_once(tmp_path: Path, status: int) -> None:
    habits = Habits(CONTENT, statuses=[status])
    with pytest.raises(PullError, match=f"the server answered {status}"):
        fetch(habits, tmp_path)
    assert len(habits.seen) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_answer_without_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="answered 204"):
        fetch(Habits(CONTENT, statuses=[204]), tmp_path)


def test_a_whole_file_that_nobody_knew_to_be_whole(tmp_path: Path) -> None:
    with serving(Habits(CONTENT)) as url, partial_in(tmp_path) as partial:
        partial.write(CONTENT)
        download.fetch(Web(url), partial, silent)
        assert partial.position == len(CONTENT)


def test_a_file_that_got_shorter_begins_anew(tmp_path: Path) -> None:
    with serving(Habits(CONTENT[:1000])) as url, partial_in(tmp_path) as partial:
        partial.write(CONTENT[:2000])
        download.fetch(Web(url), partial, silent, pause=lambda _: None)
    assert (tmp_path / "m.part").read_bytes() == CONTENT[:1000]


def test_a_promised_length_beyond_the_limit_stops_it_before_a_byte(tmp_path: Path) -> None:
    with pytest.raises(OverLimit):
        fetch(Habits(CONTENT), tmp_path, limit=1000)
    assert list(tmp_path.iterdir()) == []


def test_without_a_length_it_ends_with_the_connection_and_within_the_limit(tmp_path: Path) -> None:
    assert fetch(Habits(CONTENT, says_length=False), tmp_path)[0] == CONTENT
    (tmp_path / "m.part").unlink()
    with pytest.raises(OverLimit):
        fetch(Habits(CONTENT, says_length=False), tmp_path, limit=1000)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.part")) <= 1000


def test_an_encoded_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="sends it encoded"):
        fetch(Habits(CONTENT, encoding="gzip"), tmp_path)


def test_a_redirect_is_followed_within_the_rules(tmp_path: Path) -> None:
    assert fetch(Habits(CONTENT, redirect="/moved"), tmp_path)[0] == CONTENT
    (tmp_path / "m.part").unlink()
    with pytest.raises(PullError, match="redirects to where nothing is fetched from"):
        fetch(Habits(CONTENT, redirect="http://models.example/m"), tmp_path)


def test_nobody_listening_is_told_with_the_address_but_no_secret(tmp_path: Path) -> None:
    with serving(Habits(CONTENT)) as url:
        pass
    with partial_in(tmp_path) as partial, pytest.raises(PullError, match="Connection refused") as caught:
        download.fetch(Web(url + "?token=secret"), partial, silent, pause=lambda _: None)
    assert url in caught.value.message
    assert "secret" not in caught.value.message


def test_an_untrusted_certificate_is_told_at_once() -> None:
    reason = ssl.SSLCertVerificationError("failed")
    reason.verify_message = "certificate is not yet valid"
    with pytest.raises(PullError, match="not yet valid") as caught:
        download._broken("https://models.example/m", urllib.error.URLError(reason))
    assert "clock" in str(caught.value.hint)


def test_proxies_do_not_stand_before_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert fetch(Habits(CONTENT), tmp_path)[0] == CONTENT


def test_a_local_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(CONTENT)
    with partial_in(tmp_path) as partial:
        partial.write(b"left by an interrupted copy")
        download.copy(LocalFile(tmp_path / "there"), partial, silent)
    assert (tmp_path / "m.part").read_bytes() == CONTENT


@pytest.mark.parametrize(("name", "complaint"), [("missing", "No such file"), ("", "Is a directory")])
def test_a_local_file_that_cannot_be_read(tmp_path: Path, name: str, complaint: str) -> None:
    with partial_in(tmp_path) as partial, pytest.raises(PullError, match=complaint):
        download.copy(LocalFile(tmp_path / name), partial, silent)
