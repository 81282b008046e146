"""Embeddings: in order, bounded by the slots, and nothing left behind."""

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from node.errors import EngineFailed, Overloaded
from node.generation import Failed, Request, Sink
from tests.server.wire import open_post, post, refused, until
from tests.support.service import ScriptedService, ScriptedSource, scripted, serving

PATH = "/v1/embeddings"


async def embed(service: ScriptedService, **body: Any) -> Any:
    async with serving(service) as url:
        status, raw, _ = await post(url + PATH, body)
        assert status == 200, raw
        return json.loads(raw)


async def test_floats() -> None:
    service, _ = scripted()
    assert await embed(service, input="ab", encoding_format="float", model="scripted") == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [1.0, 3.0, -0.5]}],
        "model": "scripted",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


async def test_base64_is_little_endian_float32_and_the_default() -> None:
    service, _ = scripted()
    body = await embed(service, input=[[1, 2]])
    assert struct.unpack("<3f", base64.b64decode(body["data"][0]["embedding"])) == (1.0, 2.0, -0.5)


async def test_many_inputs_keep_their_order() -> None:
    service, source = scripted()
    body = await embed(service, input=["x" * length for length in range(1, 257)], encoding_format="float")
    assert [one["embedding"][1] for one in body["data"]] == list(range(2, 258))
    assert [one["index"] for one in body["data"]] == list(range(256))
    assert all(request.kind == "embed" for request in source.submitted)
    tokens = sum(len(request.prompt) for request in source.submitted)
    assert [request.batch for request in source.submitted] == [tokens] + [0] * 255, "counted once, for all"


class CrampedSource(ScriptedSource):
    """Takes one request at a time; refuses any other."""

    most = 0

    def submit(self, request: Request, sink: Sink) -> None:
        if self.busy >= 1:
            raise Overloaded("Full.", retry_after=1)
        super().submit(request, sink)


async def test_a_full_queue_is_waited_out_between_our_own_inputs() -> None:
    source = CrampedSource()
    body = await embed(ScriptedService(source), input=["a", "b", "c"], encoding_format="float")
    assert len(body["data"]) == 3


async def test_a_full_queue_at_the_start_is_a_429() -> None:
    service, source = scripted()
    source.refusal = Overloaded("Full.", retry_after=9)
    async with serving(service) as url:
        status, _, headers = await post(url + PATH, {"input": "a"})
        assert (status, headers["Retry-After"]) == (429, "9")


class FailingSource(ScriptedSource):
    """The second input breaks; the first never comes."""

    async def _embed(self, request: Request, sink: Sink) -> None:
        if request.id.endswith("-0"):
            sink(Failed(EngineFailed("Broke.")))
        else:
            await asyncio.Event().wait()


async def test_a_failure_leaves_nothing_running() -> None:
    source = FailingSource()
    async with serving(ScriptedService(source)) as url:
        status, error = await refused(url, {"input": ["a", "b"]}, PATH)
        assert (status, error["message"]) == (500, "Broke.")
        assert source.busy == 0


class StuckSource(ScriptedSource):
    """Never done."""

    async def _embed(self, request: Request, sink: Sink) -> None:
        await asyncio.Event().wait()


async def test_a_client_that_goes_away_leaves_nothing_running() -> None:
    source = StuckSource()
    async with serving(ScriptedService(source)) as url:
        _, writer = await open_post(url, PATH, {"input": ["a", "b", "c"]})
        await until(lambda: source.busy == 2)
        writer.close()
        await until(lambda: source.busy == 0)
        assert len(source.submitted) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": ["a"] * 257}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": []}, "input"),
        ({}, "input"),
    ],
    ids=range(5),
)
async def test_what_is_wrong_is_named(body: Any, param: str) -> None:
    service, _ = scripted()
    async with serving(service) as url:
        status, error = await refused(url, body, PATH)
        assert (status, error["param"]) == (400, param)


async def test_a_model_that_cannot_says_so() -> None:
    service, _ = scripted(embedding_size=0)
    async with serving(service) as url:
        status, error = await refused(url, {"input": "a"}, PATH)
        assert (status, error["code"]) == (400, "unsupported_value")
