"""The way to a repository's files: bounded, to where it was allowed, and by a server that is who it should be."""

from __future__ import annotations

import functools
import http.server
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from tuf.api.exceptions import DownloadError, DownloadHTTPError, DownloadLengthMismatchError

from node.errors import SettingsError
from node.fleet.repository import PageInstead, Repository, address, base_of, tls_context, why_not
from node.settings import Fleet

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A web server that answers like that; gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that leaves is no news
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def say(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def fetched(url: str, most: int = 100, **settings: object) -> bytes:
    repository = Repository(Fleet(url=url, **settings))  # type: ignore[arg-type]
    return repository.download_bytes(repository.base + "metadata/a.json", most)


def test_a_file_from_a_web_server() -> None:
    with serving(say(b"{}")) as url:
        repository = Repository(Fleet(url=url))
        assert repository.download_bytes(f"{repository.base}a.json", 10) == b"{}"
        assert (repository.requests, repository.received) == (1, 2)


def test_a_file_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a b" / "metadata").mkdir(parents=True)
    (tmp_path / "a b" / "metadata" / "a.json").write_bytes(b"{}")
    assert fetched(str(tmp_path / "a b")) == b"{}"
    assert fetched((tmp_path / "a b").as_uri()) == b"{}"


def test_what_is_missing_is_404_both_ways(tmp_path: Path) -> None:
    with serving(say(b"<html>", 404)) as url, pytest.raises(DownloadHTTPError) as refused:
        fetched(url)
    assert refused.value.status_code == 404
    with pytest.raises(DownloadHTTPError) as refused:
        fetched(str(tmp_path))
    assert refused.value.status_code == 404


def test_more_than_was_promised_is_not_read(tmp_path: Path) -> None:
    with serving(say(b"x" * 1000)) as url, pytest.raises(DownloadLengthMismatchError):
        fetched(url)
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "a.json").write_bytes(b"x" * 1000)
    with pytest.raises(DownloadLengthMismatchError):
        fetched(str(tmp_path))


@pytest.mark.parametrize(
    "answer",
    [
        say(b"<!DOCTYPE html><title>Log in</title>"),
        say(b"  \n<html>"),
        say(b"Welcome to our hotel", Content_Type="text/html; charset=utf-8"),
    ],
)
def test_a_captive_portal_is_recognised(answer: Answer) -> None:
    with serving(answer) as url, pytest.raises(PageInstead):
        fetched(url)


def test_a_pipe_in_the_folder_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    os.mkfifo(tmp_path / "metadata" / "a.json")
    with pytest.raises(DownloadError, match="is no file"):
        fetched(str(tmp_path))


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://localhost/a", "http://elsewhere.invalid/a"])
def test_redirects_lead_nowhere_else(target: str) -> None:
    with serving(say(b"", 302, Location=target)) as url, pytest.raises(DownloadError):
        fetched(url)


def test_a_redirect_to_an_allowed_place_is_followed() -> None:
    with serving(say(b"{}")) as there, serving(say(b"", 302, Location=f"{there}/x")) as url:
        assert fetched(url) == b"{}"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://fleet.example/a", "plain http"),
        ("ftp://fleet.example/a", "neither https"),
        ("https://user@fleet.example/", "no user"),
        ("https://", "name a host"),
        ("https://a b/", "must escape"),
        ("https://a:b/", "no address"),
    ],
)
def test_where_nothing_is_fetched_from(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        address(Fleet(url=url))


def test_where_something_is_fetched_from(tmp_path: Path) -> None:
    assert address(Fleet(url="http://fleet.example/a", allow_http=True)) == "http://fleet.example/a/"
    assert address(Fleet(url="https://fleet.example/a/")) == "https://fleet.example/a/"
    assert base_of(str(tmp_path), allow_http=False, key="x") == f"{tmp_path.as_uri()}/"
    assert why_not("http://127.0.0.1:1/", allow_http=False) == ""


class Certified:
    """An authority and a server certificate for localhost."""

    def __init__(self, folder: Path, name: str, until: datetime | None = None) -> None:
        authority = trustme.CA()
        self.ca_file = folder / f"{name}.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", not_after=until).configure_cert(self.tls)


def test_a_server_with_the_right_authority_and_one_with_another(tmp_path: Path) -> None:
    ours, theirs = Certified(tmp_path, "ours"), Certified(tmp_path, "theirs")
    with serving(say(b"{}"), ours.tls) as url:
        assert fetched(url, ca_file=str(ours.ca_file)) == b"{}"
        with pytest.raises(DownloadError, match="certificate cannot be trusted"):
            fetched(url, ca_file=str(theirs.ca_file))
        with pytest.raises(DownloadError, match="certificate cannot be trusted"):
            fetched(url)


def test_without_a_clock_an_ended_certificate_does_but_never_another_authority(tmp_path: Path) -> None:
    ended = Certified(tmp_path, "ended", datetime(2020, 1, 1, tzinfo=UTC))
    other = Certified(tmp_path, "other")
    with serving(say(b"{}"), ended.tls) as url:
        settings = Fleet(url=url, ca_file=str(ended.ca_file))
        with pytest.raises(DownloadError, match="expired"):
            Repository(settings).download_bytes(f"{url}/a", 10)
        assert Repository(settings, check_time=False).download_bytes(f"{url}/a", 10) == b"{}"
        wrong = Fleet(url=url, ca_file=str(other.ca_file))
        with pytest.raises(DownloadError, match="certificate cannot be trusted"):
            Repository(wrong, check_time=False).download_bytes(f"{url}/a", 10)


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.ca_file"):
        tls_context(Fleet(ca_file=str(tmp_path / "none.pem")))


def test_nobody_there() -> None:
    with serving(say(b"{}")) as url:
        pass
    with pytest.raises(DownloadError, match="refused"):
        fetched(url)
