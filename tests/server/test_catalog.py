"""Models and the tokenizer."""

import json
from typing import Any

import aiohttp
import pytest

from tests.server.wire import post, refused
from tests.support.service import scripted, serving

ENTRY = {"id": "scripted", "object": "model", "created": 1_700_000_000, "owned_by": "outpost"}


async def test_models() -> None:
    service, _ = scripted()
    async with serving(service) as url, aiohttp.ClientSession() as client:
        async with client.get(f"{url}/v1/models") as response:
            assert await response.json() == {"object": "list", "data": [ENTRY]}
        async with client.get(f"{url}/v1/models/scripted") as response:
            assert await response.json() == ENTRY
        async with client.get(f"{url}/v1/models/org/other") as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert "scripted" in error["message"]


async def answer(path: str, body: Any) -> Any:
    service, _ = scripted()
    async with serving(service) as url:
        status, raw, _ = await post(url + path, body)
        assert status == 200
        return json.loads(raw)


async def test_text_to_tokens_and_back() -> None:
    assert await answer("/tokenize", {"content": "é"}) == {"tokens": [195, 169], "count": 2}
    assert await answer("/tokenize", {"prompt": "a", "add_special": True}) == {"tokens": [256, 97], "count": 2}
    assert await answer("/tokenize", {"content": ""}) == {"tokens": [], "count": 0}
    assert await answer("/detokenize", {"tokens": [256, 195, 169]}) == {"content": "é"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 3}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
async def test_what_is_wrong_is_named(path: str, body: Any, param: str) -> None:
    service, _ = scripted()
    async with serving(service) as url:
        status, error = await refused(url, body, path)
        assert status == 400
        assert error["param"].startswith(param)
