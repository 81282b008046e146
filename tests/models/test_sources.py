from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.models.sources import LocalFile, Web, WheelMember, checked_url, parse


@pytest.mark.parametrize(
    ("written", "source"),
    [
        ("pypi:some-model==1.0/pkg/data/m.gguf", WheelMember("some-model==1.0", "pkg/data/m.gguf")),
        ("pypi:m==1!2.0.post1+cpu/m.gguf", WheelMember("m==1!2.0.post1+cpu", "m.gguf")),
        ("https://models.example/a/m.gguf?x=1", Web("https://models.example/a/m.gguf?x=1")),
        ("http://127.0.0.1:8000/m.gguf", Web("http://127.0.0.1:8000/m.gguf")),
        ("http://[::1]:8000/m.gguf", Web("http://[::1]:8000/m.gguf")),
        ("http://localhost/m.gguf", Web("http://localhost/m.gguf")),
        ("file:///media/usb%20stick/m.gguf", LocalFile(Path("/media/usb stick/m.gguf"))),
        ("file://localhost/m.gguf", LocalFile(Path("/m.gguf"))),
    ],
)
def test_each_kind_is_read(written: str, source: object) -> None:
    assert parse(written) == source


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("m.gguf", "is no source"),
        ("", "is no source"),
        ("ftp://models.example/m.gguf", "is no source"),
        ("pypi:some-model/m.gguf", "pin one version"),
        ("pypi:--index-url==1/m.gguf", "pin one version"),
        ("pypi:m==-r/m.gguf", "pin one version"),
        ("pypi:m>=1/m.gguf", "pin one version"),
        ("pypi:m==1 --pre/m.gguf", "pin one version"),
        ("pypi:m==1", "no file inside"),
        ("pypi:m==1/folder/", "no file inside"),
        ("http://models.example/m.gguf", "must be https"),
        ("http://127.0.0.1.example/m.gguf", "must be https"),
        ("https:///m.gguf", "names no host"),
        ("https://user:word@models.example/m.gguf", "user name or password"),
        ("https://models.example/a b", "must escape"),
        ("https://models.example/\r\nHost: x", "must escape"),
        ("https://models.example:port/m", "ort"),
        ("file:m.gguf", "absolute path"),
        ("file://other-host/m.gguf", "absolute path"),
        ("file:///m%00.gguf", "absolute path"),
    ],
)
def test_what_is_no_source_is_refused_with_a_reason(written: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(written)


@given(
    st.one_of(
        st.text(),
        st.sampled_from(["pypi:", "https:", "http:", "file:"]).flatmap(lambda k: st.text().map(lambda t: k + t)),
    )
)
def test_any_text_is_a_source_or_a_value_error(written: str) -> None:
    try:
        source = parse(written)
    except ValueError:
        return
    if isinstance(source, WheelMember):
        assert not source.requirement.startswith("-")


def test_an_allowed_url_comes_back_as_it_was() -> None:
    assert checked_url("https://models.example/m") == "https://models.example/m"
