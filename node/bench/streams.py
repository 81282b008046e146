"""Streams as a client sees them: started together, every piece's arrival noted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import aiohttp

from node.bench.figures import Arrivals
from node.client import Client, Done
from node.errors import EngineFailed

GREEDY = {"temperature": 0.0, "ignore_eos": True}  # every stream decodes exactly as many tokens as it asked for


async def listen(client: Client, prompt: str, arrivals: Arrivals, max_tokens: int | None, **more: Any) -> Done:
    """Read one answer to its end, noting when each piece came; without `max_tokens` the context ends it."""
    note = arrivals.times.append
    messages = [{"role": "user", "content": prompt}]
    async with aclosing(client.chat(messages, max_tokens=max_tokens, **more)) as events:
        async for event in events:
            if isinstance(event, Done):
                arrivals.tokens = event.usage.completion_tokens if event.usage else 0
                return event
            note(event.at)
    raise AssertionError("a stream ends with Done or an error")


async def together(client: Client, prompts: Sequence[str], max_tokens: int, **more: Any) -> list[Arrivals]:
    """One greedy stream a prompt, all at once, each of `max_tokens` tokens; `more` goes to the client's chat."""
    streams = [Arrivals() for _ in prompts]
    try:
        async with asyncio.TaskGroup() as group:
            for prompt, arrivals in zip(prompts, streams, strict=True):
                group.create_task(listen(client, prompt, arrivals, max_tokens, **GREEDY, **more))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors  # the others were cancelled because of it
    if wrong := [stream.tokens for stream in streams if stream.tokens != max_tokens]:
        raise EngineFailed(f"A stream of {max_tokens} tokens ended after {wrong[0]}.")
    return streams


async def first_token(client: Client, prompt: str, max_tokens: int = 4, **more: Any) -> float:
    """Seconds from the request to the first text of its answer; `more` goes to the client's chat."""
    done = await listen(client, prompt, Arrivals(), max_tokens, **GREEDY, **more)
    if done.ttft_s is None:
        raise EngineFailed("An answer came without any text.")
    return done.ttft_s


async def count_tokens(url: str, text: str) -> int:
    """How many tokens the node at `url` makes of `text`."""
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{url}/tokenize", json={"content": text}) as response,
    ):
        return int((await response.json())["count"])
