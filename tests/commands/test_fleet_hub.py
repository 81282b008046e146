"""Reports come from a hub page by page, or from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.commands.fleet_hub import from_file, from_hub
from node.errors import OperatorError, Unreachable
from node.fleet.progress import Report
from tests.fleet.test_repository import say, serving

BODY = {"node": "liar", "rollout": "a", "revision": 1, "outcome": "committed"}


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    path.write_text(json.dumps(BODY) + "\nnothing\n\n" + json.dumps(BODY | {"node": "b"}))
    assert [report.node for report in from_file(path)] == ["liar", "b"]
    with pytest.raises(OperatorError, match="Cannot read"):
        from_file(tmp_path / "none")


def test_a_hub_page_by_page_and_who_sent_it_counts() -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(request: object) -> None:
        asked.append((request.path, request.headers["Authorization"]))  # type: ignore[attr-defined]
        first = request.path.endswith("after=0")  # type: ignore[attr-defined]
        rows = [{"number": 7, "node": "n1", "report": BODY}] if first else [{"number": 9, "node": "n2", "report": None}]
        say(json.dumps({"data": rows, "has_more": first}).encode())(request)  # type: ignore[arg-type]

    with serving(answer) as url:
        assert from_hub(f"{url}/v1", "secret") == [Report(node="n1", rollout="a", revision=1, outcome="committed")]
    assert asked == [("/v1/hub/reports?after=0", "Bearer secret"), ("/v1/hub/reports?after=7", "Bearer secret")]


def test_what_is_no_hub() -> None:
    with serving(say(b"no", 404)) as url, pytest.raises(Unreachable, match="answered 404"):
        from_hub(url, "")
    for body in (b"[]", b"<html>"):
        with serving(say(body)) as url, pytest.raises(Unreachable):
            from_hub(url, "")
    with pytest.raises(Unreachable, match="cannot be reached"):
        from_hub("http://127.0.0.1:1", "")
    with pytest.raises(OperatorError, match="plain http"):
        from_hub("http://hub.example", "")
