import argparse
import asyncio
import io
import json
import os
import pty
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from node.client import Client, ClientError, Done, Happening, Usage
from node.commands import ask
from node.errors import OperatorError
from tests.test_client import END, FIRST, LAST, USAGE, Handler, free_port, refuse, script, serving, text
from tests.test_transport import KEY, WHOLE, WORDS, kit, slowly

ANSWER = script(FIRST, text("Zażółć "), 0.03, text("🎈"), LAST, USAGE, END)
# The real command line, with this verb alone.
# Where this suite runs in the background its children would be deaf to Ctrl-C.
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
PROGRAM = HEARING + "import sys; from node import cli; cli.VERBS = ('ask',); sys.exit(cli.main())"


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def started(*arguments: str, stdout: int = PIPE, stdin: int = PIPE) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "ask", *arguments), stdin=stdin, stdout=stdout, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def outpost_ask(*arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    async with started(*arguments) as process:
        out, err = await process.communicate(stdin)
        return process.returncode, out.decode(), err.decode()


def recording(bodies: list[dict[str, Any]], keys: list[str | None] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        if keys is not None:
            keys.append(request.headers.get("Authorization"))
        return await ANSWER(request)

    return handler


async def test_the_answer_and_nothing_else_is_on_standard_output() -> None:
    async with serving(ANSWER) as url:
        assert await outpost_ask("Hi", "there", "--url", url) == (0, "Zażółć 🎈\n", "")


async def test_stats_are_on_standard_error() -> None:
    async with serving(ANSWER) as url:
        code, out, err = await outpost_ask("Hi", "--url", url, "--stats")
    assert (code, out) == (0, "Zażółć 🎈\n")
    assert err.startswith("TTFT ")
    assert "tokens/s" in err
    assert "2 tokens for a prompt of 3 (0 warm)" in err


async def test_json_is_one_object() -> None:
    async with serving(ANSWER) as url:
        code, out, err = await outpost_ask("Hi", "--url", url, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    answer = json.loads(out)
    assert answer["text"] == "Zażółć 🎈"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0}
    assert answer["finish_reason"] == "stop"
    assert answer["ttft_ms"] > 0
    assert answer["tokens_per_second"] > 0


async def test_options_and_piped_text_reach_the_node() -> None:
    bodies: list[dict[str, Any]] = []
    keys: list[str | None] = []
    options = ["--system", "Be brief.", "--max-tokens", "9", "--temperature", "0", "--seed", "4", "--api-key", "k" * 16]
    async with serving(recording(bodies, keys)) as url:
        code, _, _ = await outpost_ask("Summarise:", *options, "--url", url, stdin="\ufeffżó\nb\n".encode())
    assert code == 0
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Summarise:\n\nżó\nb"},
    ]
    assert (bodies[0]["max_tokens"], bodies[0]["temperature"], bodies[0]["seed"]) == (9, 0.0, 4)
    assert keys == ["Bearer " + "k" * 16]


async def test_the_settings_name_the_node_and_its_key(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []
    keys: list[str | None] = []
    async with serving(recording(bodies, keys)) as url:
        port = url.rpartition(":")[2]
        (tmp_path / "node.toml").write_text(f'[server]\nport = {port}\napi_keys = ["{"s" * 16}"]\n')
        code, _, err = await outpost_ask(stdin=b"Hi")
    assert (code, err) == (0, "")
    assert bodies[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert keys == ["Bearer " + "s" * 16]


async def test_no_node() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, out, err = await outpost_ask("Hi", "--url", url)
    assert (code, out) == (1, "")
    assert f"no node answers at {url}" in err
    assert "outpost serve" in err
    assert "tools/start" in err


async def test_a_refusal_is_told() -> None:
    body = {"error": {"message": "The queue is full.", "type": "rate_limit_error", "param": None, "code": "queue_full"}}
    async with serving(refuse(429, body, {"Retry-After": "7"})) as url:
        code, out, err = await outpost_ask("Hi", "--url", url)
    assert (code, out) == (1, "")
    assert err == "outpost: The queue is full.\n  Try again in 7 seconds.\n"


async def test_an_error_in_mid_stream_leaves_the_text() -> None:
    error = b'data: {"error":{"message":"out of memory","type":"server_error","code":"engine_failed"}}\n\n'
    async with serving(script(text("partial"), error)) as url:
        assert await outpost_ask("Hi", "--url", url) == (1, "partial\n", "outpost: out of memory\n")


async def test_an_interrupt_leaves_the_text_and_stops_the_node() -> None:
    gone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await script(text("partial"), 30.0)(request)
        except asyncio.CancelledError:
            gone.set()
            raise

    async with serving(handler) as url, started("Hi", "--url", url) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        assert await process.stdout.readexactly(7) == b"partial"
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        assert (process.returncode, out, err) == (130, b"\n", b"")
        await asyncio.wait_for(gone.wait(), 20)


async def test_a_reader_that_leaves_is_no_error() -> None:
    endless = script(*(step for _ in range(100) for step in (text("line\n"), 0.02)))
    async with serving(endless) as url, started("Hi", "--url", url) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        await process.stdout.readline()
        process.stdout._transport.close()  # type: ignore[attr-defined]  # as `| head -1` does
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert process.stderr
        assert await process.stderr.read() == b""


@pytest.mark.parametrize("transport", ["sse", "ws"])
async def test_a_cut_is_only_a_pause_and_stats_tell_it(tmp_path: Path, transport: str) -> None:
    async with kit(tmp_path, *slowly(0.01)) as k:
        command = ("Hi", "--url", k.cable.url, "--api-key", KEY, "--resume", "--transport", transport, "--stats")
        async with started(*command) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            shown = await process.stdout.readuntil(b"word9 ")
            k.cable.cut()
            rest, err = await process.communicate()
        assert (shown + rest).decode() == WHOLE + "\n"
        assert process.returncode == 0
        assert "1 resume" in err.decode()
        assert len(k.source.submitted) == 1


async def test_a_stored_answer_is_fetched_by_its_id(tmp_path: Path) -> None:
    async with kit(tmp_path, *WORDS) as k:
        common = ("--url", k.cable.url, "--api-key", KEY)
        _, out, _ = await outpost_ask("Hi", *common, "--resume", "--json")
        answer = json.loads(out)
        assert (answer["text"], answer["resumes"], answer["stalls"]) == (WHOLE, 0, 0)
        assert await outpost_ask("--stream", answer["id"], *common) == (0, WHOLE + "\n", "")
        assert await outpost_ask("--stream", answer["id"], "--from", "118", *common, "--transport", "ws") == (
            0,
            "".join(WORDS[118:]) + "\n",
            "",
        )
        code, out, err = await outpost_ask("--stream", "chatcmpl-unknown", *common)
        assert (code, out) == (1, "")
        assert "no generation" in err


async def test_an_interrupted_reader_learns_how_to_get_the_rest(tmp_path: Path) -> None:
    async with kit(tmp_path, "one ", "two ", asyncio.Event()) as k:
        command = ("Hi", "--url", k.cable.url, "--api-key", KEY, "--resume")
        async with started(*command) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            assert await process.stdout.readexactly(8) == b"one two "
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
        id = k.source.submitted[0].id
        assert process.returncode == 130
        assert err.decode() == (
            f"outpost ask: the answer goes on without you. The rest: outpost ask --stream {id} --from 2\n"
        )
        assert k.source.cancelled == []


def test_the_way_to_the_rest() -> None:
    client = Client("http://127.0.0.1:1")
    assert ask._rest(client, 4) is None
    client.history.append(Happening("", "lost", -1, 0.0, "nobody there"))
    assert ask._rest(client, 4) is None
    client.history.append(Happening("chatcmpl-1", "opened", -1, 0.0))
    assert ask._rest(client, 4) == "The rest: outpost ask --stream chatcmpl-1 --from 5"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stream", "x", "a", "prompt"], "takes no prompt"),
        (["--from", "3", "hello"], "goes with --stream"),
        (["--stream", "x", "--from", "-1"], "counts from 0"),
    ],
)
async def test_options_that_do_not_fit(arguments: list[str], said: str) -> None:
    code, out, err = await outpost_ask(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_text_that_a_node_lost_is_taken_back_where_that_can_be(capsys: Any) -> None:
    collected = ask.Screen(io.StringIO(), collect=True)
    collected.show("one two")
    collected.take_back("two")
    assert collected.collected == "one "
    pipe = ask.Screen(io.StringIO(), collect=False)
    pipe.show("one two")
    with pytest.raises(ClientError, match="cannot be taken back"):
        pipe.take_back("two")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    terminal = ask.Screen(out, collect=False)
    terminal.show("one two")
    terminal.take_back("two")
    assert out.getvalue() == "one two\n"
    assert "lost the last 3 characters" in capsys.readouterr().err


async def test_no_control_character_reaches_a_terminal() -> None:
    hostile = script(text("a\x1b[2J\x1b]0;pwned\x07\tb\r\n"), text("c\x9b1m\x7f\x00d"), LAST, END)
    ours, theirs = pty.openpty()
    try:
        async with serving(hostile) as url, started("Hi", "--url", url, stdout=theirs) as process:
            await process.communicate(b"")
        seen = os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen == b"a[2J]0;pwned\tb\r\nc1md\r\n"  # the terminal's own driver writes \r\n


async def test_a_file_gets_the_text_as_it_is() -> None:
    async with serving(script(text("a\x1b[0mb\n"), LAST, END)) as url:
        assert await outpost_ask("Hi", "--url", url) == (0, "a\x1b[0mb\n", "")


@pytest.mark.parametrize("arguments", [["--temperature", "nan"], ["--max-tokens", "many"], ["--seed", "1.5"]])
def test_numbers_that_are_none(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("Hi", *arguments)
    assert caught.value.code == 2


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    ask.register(parser.add_subparsers())
    return parser.parse_args(["ask", *arguments])


def piped(data: bytes, tmp_path: Path) -> Any:
    file = tmp_path / "stdin"
    file.write_bytes(data)
    return file.open()


def test_no_prompt_is_used_wrongly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with piped(b" \n", tmp_path) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert ask.run(parse()) == 2
    assert "no prompt" in capsys.readouterr().err


def test_standard_input_that_is_no_text(tmp_path: Path) -> None:
    with piped(b"abc\xff", tmp_path) as stdin, pytest.raises(OperatorError, match="not UTF-8"):
        ask._prompt([], stdin)
    with piped(b"x" * (17 << 20), tmp_path) as stdin, pytest.raises(OperatorError, match="larger"):
        ask._prompt([], stdin)


def test_without_standard_input() -> None:
    assert ask._prompt(["a", "b"], None) == "a b"


def test_a_pipe_that_stays_open_is_explained(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(ask, "_NOTICE_S", 0.0)
    reader, writer = os.pipe()
    os.write(writer, b"")

    class Stdin:
        """Ends its pipe once somebody reads."""

        def __init__(self) -> None:
            self.buffer = self

        def fileno(self) -> int:
            return reader

        def read(self, size: int) -> bytes:
            os.close(writer)
            return os.read(reader, size)

    assert ask._read(Stdin()) == ""  # type: ignore[arg-type]
    os.close(reader)
    assert "until it ends" in capsys.readouterr().err


def test_figures_that_are_missing_are_left_out() -> None:
    done = Done("length", None, None, 1.0, None, "m", "c")
    assert ask._stats(done) == "ended by length · 1.0 s in all"
    assert ask._summary("", done)["tokens_per_second"] is None
    full = Done("stop", Usage(12, 27, 8), 0.1234, 1.0, 45.678, "m", "c", resumes=2, stalls=1, stalled_s=3.21)
    assert " · 2 resumes · 1 stall (3.2 s) · ended by stop" in ask._stats(full)
    assert ask._stats(full).startswith("TTFT 123 ms · 45.7 tokens/s · 27 tokens for a prompt of 12 (8 warm)")
