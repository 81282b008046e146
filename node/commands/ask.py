"""`outpost ask`: one question to a running node, the answer streamed to the terminal."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import os
import select
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Any, TextIO

from node.client import Client, ClientError, Done, TextDelta, TextRewind
from node.commands.numbers import number
from node.commands.target import Target, add_target, target
from node.errors import OperatorError, Unavailable
from node.link.serial import Mode
from node.serialclient import SerialClient

_MAX_STDIN_BYTES = 16 << 20
_NOTICE_S = 2.0
# C0 and C1 controls and DEL, except newline and tab: what a model writes must not drive the terminal that shows it.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ask` to the command line."""
    parser = verbs.add_parser(
        "ask",
        help="ask a running node and stream the answer",
        description="Ask a running node and stream its answer. Piped input is added below the prompt.",
        epilog='Examples:\n  outpost ask "What is a mesh network?"\n  outpost ask Summarise: < report.txt\n'
        "  outpost ask --stream chatcmpl-… --from 120",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the question; words are joined with spaces")
    add_target(parser)
    parser.add_argument("--system", metavar="TEXT", help="instructions that stand before the question")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer, in tokens")
    parser.add_argument("--temperature", type=number(-math.inf), metavar="T", help="0 always takes the likeliest token")
    parser.add_argument("--seed", type=int, metavar="N", help="repeats the same choices")
    parser.add_argument("--json", action="store_true", help="print one JSON object when the answer is complete")
    parser.add_argument("--stats", action="store_true", help="print TTFT, tokens/s and stalls on standard error")
    parser.add_argument("--resume", action="store_true", help="survive lost connections and a node that restarts")
    parser.add_argument(
        "--transport",
        choices=("sse", "ws", "link"),
        default="sse",
        help="how the answer travels; link is UDP, for lossy networks (default: sse)",
    )
    parser.add_argument("--serial", metavar="DEVICE", help="ask the node at the other end of this serial line")
    parser.add_argument("--baud", type=int, default=115_200, metavar="N", help="its speed (default: 115200)")
    parser.add_argument("--radio", action="store_true", help="with --serial: the line is a radio modem")
    parser.add_argument("--stream", metavar="ID", help="fetch a resumable answer that was begun before; no prompt")
    parser.add_argument("--from", type=int, dest="start", metavar="N", help="with --stream: from this entry number on")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask and print; 0 done, 1 failed, 2 without a prompt or with options that do not fit, 130 interrupted."""
    prompt = _prompt(args.prompt, None if args.stream else sys.stdin)
    if wrong := _misuse(args, prompt):
        print(f"outpost ask: {wrong}", file=sys.stderr)
        return 2
    screen = Screen(sys.stdout, collect=args.json)
    try:
        done = asyncio.run(_ask(target(args.url, args.api_key), _messages(args.system, prompt), args, screen))
        if args.json:
            print(json.dumps(_summary(screen.collected, done), ensure_ascii=screen.is_terminal), flush=True)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()
        return 0
    if args.stats:
        print(_stats(done), file=sys.stderr)
    return 0


class Screen:
    """Where an answer appears as it comes; with `collect` it is kept instead."""

    def __init__(self, out: TextIO, *, collect: bool) -> None:
        self.is_terminal = out.isatty()
        self._out = out
        self._pieces: list[str] | None = [] if collect else None
        self._line_is_open = False
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows `?` for what it lacks

    @property
    def collected(self) -> str:
        """All text so far."""
        return "".join(self._pieces or ())

    def show(self, text: str) -> None:
        """Put `text` where the reader sees it, now."""
        if self._pieces is not None:
            self._pieces.append(text)
            return
        if self.is_terminal:
            text = text.translate(_CONTROLS)
        if text:
            self._line_is_open = not text.endswith("\n")
            self._out.write(text)
            self._out.flush()

    def take_back(self, text: str) -> None:
        """What the node lost: the reader is told where it comes anew; a pipe cannot be taken back."""
        if self._pieces is not None:
            self._pieces = [self.collected.removesuffix(text)]
        elif not self.is_terminal:
            raise ClientError(
                f"The node lost the last {len(text)} characters, and what was written cannot be taken back.",
                hint="With --json an answer is written when it is whole.",
            )
        else:
            self.close()
            print(f"outpost ask: the node lost the last {len(text)} characters; they come anew:", file=sys.stderr)

    def close(self) -> None:
        """End the last line, so that what follows starts on its own."""
        if self._line_is_open:
            self.show("\n")


async def _ask(node: Target, messages: list[dict[str, str]], args: argparse.Namespace, screen: Screen) -> Done:
    wanted = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    if args.serial:
        return await _ask_serial(messages, args, wanted, screen)
    async with Client(node.url, node.api_key, tls=node.tls) as client:
        if args.stream:
            answer = client.stream(args.stream, args.start or 0, transport=args.transport)
        else:
            answer = client.chat(messages, **wanted, resumable=args.resume, transport=args.transport)
        last = (args.start or 0) - 1
        try:
            async with aclosing(answer) as events:
                async for event in events:
                    if isinstance(event, Done):
                        return event
                    if isinstance(event, TextRewind):
                        last = event.to_seq
                        screen.take_back(event.text_dropped)
                    else:
                        last = last if event.seq is None else event.seq
                        screen.show(event.text)
        except (ClientError, Unavailable) as error:
            error.hint = _rest(client, last) or error.hint
            raise
        except asyncio.CancelledError:
            screen.close()
            if rest := _rest(client, last):
                print(f"outpost ask: the answer goes on without you. {rest}", file=sys.stderr)
            raise
        finally:
            screen.close()
    raise AssertionError("a stream ends with Done or an error")


async def _ask_serial(
    messages: list[dict[str, str]], args: argparse.Namespace, wanted: Mapping[str, Any], screen: Screen
) -> Done:
    mode: Mode = "radio" if args.radio else "wired"
    try:
        async with (
            SerialClient(args.serial, args.baud, mode) as client,
            aclosing(client.chat(messages, **wanted)) as events,
        ):
            async for event in events:
                if isinstance(event, Done):
                    return event
                if isinstance(event, TextDelta):
                    screen.show(event.text)
    finally:
        screen.close()
    raise AssertionError("a stream ends with Done or an error")


def _rest(client: Client, last: int) -> str | None:
    """How to get what is missing of a resumable answer."""
    ids = [happening.id for happening in client.history if happening.id]
    return f"The rest: outpost ask --stream {ids[-1]} --from {last + 1}" if ids else None


def _misuse(args: argparse.Namespace, prompt: str) -> str | None:
    """What is wrong with the command line as a whole."""
    if args.stream and prompt:
        return "--stream fetches an answer that was begun before; it takes no prompt."
    if args.start is not None and (not args.stream or args.start < 0):
        return "--from goes with --stream, and counts from 0."
    if args.serial and (args.stream or args.resume or args.url or args.transport != "sse"):
        return "--serial has no network: it goes without --url, --transport, --resume and --stream."
    if args.radio and not args.serial:
        return "--radio goes with --serial."
    if not args.stream and not prompt:
        return "there is no prompt.\n  Write one after `ask`, or pipe one in."
    return None


def _messages(system: str | None, prompt: str) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": prompt}]


def _prompt(words: Sequence[str], stdin: TextIO | None) -> str:
    """The words, then what is piped in, with an empty line between."""
    piped = "" if stdin is None or stdin.closed or stdin.isatty() else _read(stdin)
    return "\n\n".join(part for part in (" ".join(words).strip(), piped.strip()) if part)


def _read(stdin: TextIO) -> str:
    if not select.select([stdin], [], [], _NOTICE_S)[0]:  # ssh leaves an open pipe there
        print("outpost ask: reading standard input until it ends (Ctrl-D) …", file=sys.stderr)
    data = stdin.buffer.read(_MAX_STDIN_BYTES + 1)
    if len(data) > _MAX_STDIN_BYTES:
        raise OperatorError(f"Standard input is larger than a prompt can be ({_MAX_STDIN_BYTES} bytes).")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OperatorError(f"Standard input is not UTF-8 text ({error.reason} at byte {error.start}).") from error


def _summary(text: str, done: Done) -> dict[str, Any]:
    return {
        "text": text,
        "finish_reason": done.finish_reason,
        "model": done.model,
        "id": done.id,
        "usage": asdict(done.usage) if done.usage else None,
        "ttft_ms": None if done.ttft_s is None else round(done.ttft_s * 1000, 1),
        "tokens_per_second": None if done.tokens_per_second is None else round(done.tokens_per_second, 2),
        "resumes": done.resumes,
        "stalls": done.stalls,
        "stalled_s": round(done.stalled_s, 3),
    }


def _stats(done: Done) -> str:
    parts = []
    if done.ttft_s is not None:
        parts.append(f"TTFT {done.ttft_s * 1000:.0f} ms")
    if done.tokens_per_second is not None:
        parts.append(f"{done.tokens_per_second:.1f} tokens/s")
    if usage := done.usage:
        parts.append(
            f"{usage.completion_tokens} tokens for a prompt of {usage.prompt_tokens} ({usage.cached_tokens} warm)"
        )
    if done.resumes:
        parts.append(f"{done.resumes} {'resume' if done.resumes == 1 else 'resumes'}")
    if done.stalls:
        parts.append(f"{done.stalls} {'stall' if done.stalls == 1 else 'stalls'} ({done.stalled_s:.1f} s)")
    return " · ".join([*parts, f"ended by {done.finish_reason}", f"{done.total_s:.1f} s in all"])


def _discard_output() -> None:
    """Let the interpreter's last flush go nowhere, so that it does not complain about the pipe either."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
