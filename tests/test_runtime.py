"""A whole node: start, ready, drain, stop, and what may go wrong before it serves."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
import trustme

from node.client import Client, Done, TextDelta
from node.errors import EngineFailed, ModelFileError, NodeError, SettingsError
from node.generation import Service
from node.machine.heat import Heat
from node.machine.supply import Supply
from node.runtime import Node
from node.serving import Serving
from tests.conftest import settings
from tests.mesh.fleets import Fleet, enrolled
from tests.support import tiny_model
from tests.support.cable import until

Start = Callable[..., Awaitable[Node]]


async def get(url: str) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.json()


async def ask(node: Node, text: str, **more: object) -> str:
    async with Client(node.url) as client:
        events = [event async for event in client.chat([{"role": "user", "content": text}], **more)]
    assert isinstance(events[-1], Done)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_a_started_node_answers_and_is_ready(echo_node: Node) -> None:
    service: Service = echo_node
    assert service.ready
    assert not service.draining
    assert await ask(echo_node, "hello there") == "hello there"
    assert (await get(f"{echo_node.url}/health/ready"))[0] == 200
    assert service.load().running == 0
    assert service.load().kv_total > 0
    status = service.status()
    assert set(status) >= {"model", "queue", "kv", "memory", "cpu", "drafts"}
    assert status["drafts"] == {"proposed": 0, "accepted": 0}
    assert status["model"]["engine"] == "echo"
    assert status["queue"]["levels"]["standard"]["admitted"] == 1, "the question; the first token of all is nobody's"
    assert status["memory"]["resident_bytes"] > 1 << 20


async def test_ready_only_after_a_token_was_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(settings(engine_kind="echo"))
    seen = []
    first_token = Serving.decode_one_token

    async def watch(self: Serving) -> None:
        seen.append((node.ready, (await get(f"{node.url}/health/ready"))[0], (await get(f"{node.url}/health/live"))[0]))
        await first_token(self)

    monkeypatch.setattr(Serving, "decode_one_token", watch)
    await node.start()
    assert seen == [(False, 503, 200)]
    assert node.ready
    await node.stop(grace_s=0)


async def test_who_asks_before_the_first_token_was_decoded_waits_for_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(settings(engine_kind="echo", engine_slots=1, engine_echo_rate=10))
    first_token, asking = Serving.decode_one_token, []

    async def crowded(self: Serving) -> None:
        asking.append(asyncio.create_task(ask(node, "early")))
        await asyncio.sleep(0.2)  # it would be in the engine by now; where it is not yet, the test finds less
        await first_token(self)

    monkeypatch.setattr(Serving, "decode_one_token", crowded)
    try:
        await node.start()
        assert await asking[0] == "early"
    finally:
        await node.stop(grace_s=0)


async def test_stop_lets_a_stream_finish_and_refuses_new_ones(start_node: Start) -> None:
    node = await start_node(engine_kind="echo")
    async with Client(node.url) as client:
        stream = client.chat([{"role": "user", "content": "x" * 4000}])
        first = await anext(aiter(stream))
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0.01)
        assert node.draining
        assert not node.ready
        async with Client(node.url) as other:
            with pytest.raises(NodeError) as refused:
                async for _ in other.chat([{"role": "user", "content": "late"}]):
                    pass
        assert refused.value.status == 503
        text = first.text if isinstance(first, TextDelta) else ""
        async for event in stream:
            text += event.text if isinstance(event, TextDelta) else ""
    assert text == "x" * 4000
    await stopping


async def test_the_grace_period_ends(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", server_grace_s=0.05)
    async with Client(node.url) as client:
        stream = client.chat([{"role": "user", "content": "x" * 100}], ignore_eos=True)
        await anext(aiter(stream))
        async with asyncio.timeout(30):
            await node.stop()
        with pytest.raises(NodeError):
            async for _ in stream:
                pass


async def test_a_taken_port_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        node = Node(settings(engine_kind="echo", server_port=taken.getsockname()[1]))
        with pytest.raises(SettingsError, match="Cannot listen") as error:
            await node.start()
    assert "--port" in (error.value.hint or "")


async def test_an_engine_that_decodes_nothing_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    from node.engine.echo import EchoEngine

    def broken(self: EchoEngine) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(EchoEngine, "step", broken)
    node = Node(settings(engine_kind="echo"))
    with pytest.raises(EngineFailed):
        await node.start()


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"", "junk"), (b"GGUF\x03\0\0\0", "junk"), (b"not a model at all, just text" * 9, "junk")],
)
def test_a_damaged_file_is_refused_before_anything_runs(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "junk.gguf").write_bytes(content)
    with pytest.raises(ModelFileError, match=word):
        Node(settings(model_name=tmp_path / "junk.gguf"))


@pytest.mark.model
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.999])
def test_a_truncated_model_is_named_as_such(tmp_path: Path, weights: Path, keep: float) -> None:
    data = weights.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        Node(settings(model_name=tmp_path / "cut.gguf"))


async def test_https_with_certificate_files(start_node: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tmp_path / "chain.pem", append=True)
    node = await start_node(
        engine_kind="echo", server_tls_certificate=tmp_path / "chain.pem", server_tls_key=tmp_path / "key.pem"
    )
    assert node.url.startswith("https://")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with aiohttp.ClientSession() as session, session.get(f"{node.url}/health/live", ssl=trust) as response:
        assert response.status == 200


async def test_a_bad_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("not a certificate")
    node = Node(
        settings(engine_kind="echo", server_tls_certificate=tmp_path / "x.pem", server_tls_key=tmp_path / "x.pem")
    )
    with pytest.raises(SettingsError, match="certificate"):
        await node.start()


@pytest.mark.model
async def test_threads_follow_the_machine(weights: Path) -> None:
    hot = Heat(slowed=("cpufreq is held back",))
    node = Node(settings(power_hot_threads=1, engine_threads=2, engine_context=512), look=lambda: (hot, Supply()))
    await node.start()
    try:
        async with asyncio.timeout(30):
            while node.status()["cpu"]["allowed"] != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await ask(node, "Hi", max_tokens=3)
        assert node.status()["cpu"] == {"threads": 1, "allowed": 1, "reason": "heat"}
    finally:
        await node.stop(grace_s=0)


async def test_an_engine_without_threads_says_so(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(settings(engine_kind="echo", power_battery_threads=1), look=lambda: (Heat(), Supply(on_battery=True)))
    await node.start()
    try:
        async with asyncio.timeout(10):
            while "cannot be limited" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await node.stop(grace_s=0)


RESULT = '{"winner": "Q8_0", "why": "", "gains": null}'
DONE = (sys.executable, "-c", f"print({RESULT!r})")
WAITS = (sys.executable, "-c", "import sys; sys.stdin.read()")


@pytest.fixture
async def tuning_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[Sequence[str]], Awaitable[Node]]]:
    """A node with the tiny model on a fixed port, which tunes itself with a command of the test's."""
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    model = tiny_model.write(tmp_path / "tiny.gguf")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes: list[Node] = []

    async def start(command: Sequence[str]) -> Node:
        own = {"model_name": model, "server_port": port, "tune_idle_s": 1, "engine_threads": 1, "engine_slots": 2}
        node = Node(settings(**own), command)
        nodes.append(node)
        await node.start()
        return node

    yield start
    await asyncio.gather(*(node.stop(grace_s=0) for node in nodes))


def tuning(node: Node) -> object:
    return node.status()["tuning"]["auto"]


async def complete(node: Node) -> None:
    body = {"model": node.model.info.id, "prompt": "a", "max_tokens": 2}
    async with aiohttp.ClientSession() as session, session.post(f"{node.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()


async def test_an_idle_node_tunes_itself(tuning_node: Callable[[Sequence[str]], Awaitable[Node]]) -> None:
    node = await tuning_node(DONE)
    assert tuning(node) == "waiting"
    await until(lambda: tuning(node) == "done")
    await complete(node)


async def test_a_request_comes_before_tuning(tuning_node: Callable[[Sequence[str]], Awaitable[Node]]) -> None:
    node = await tuning_node(WAITS)
    await until(lambda: tuning(node) == "running" and node._auto_tune._process is not None)
    process = node._auto_tune._process
    assert process.returncode is None
    await complete(node)
    await until(lambda: tuning(node) == "interrupted")
    assert process.returncode == -signal.SIGKILL


async def test_a_node_that_stops_takes_its_tuning_along(
    tuning_node: Callable[[Sequence[str]], Awaitable[Node]],
) -> None:
    node = await tuning_node(WAITS)
    await until(lambda: tuning(node) == "running" and node._auto_tune._process is not None)
    await node.stop()
    assert node._auto_tune._process.returncode == -signal.SIGKILL


async def test_a_node_that_is_given_no_command_never_tunes_itself(start_node: Start, echo_node: Node) -> None:
    assert tuning(echo_node) == "off"
    assert Node(settings(engine_kind="echo"), DONE)._tuning == ()


async def test_a_variant_is_served_under_its_model_s_name(start_node: Start, tmp_path: Path) -> None:
    model, variant = tiny_model.write(tmp_path / "tiny.gguf"), tiny_model.write(tmp_path / "other.gguf", seed=2)
    node = await start_node(model_name=model, model_variant=variant, engine_threads=1, engine_slots=2)
    assert node.model.info.id == "tiny"
    assert node.status()["tuning"] == {"variant": "other.gguf", "auto": "off"}
    with pytest.raises(ModelFileError, match=r"none\.gguf"):
        Node(settings(model_name=model, model_variant=tmp_path / "none.gguf"))


async def test_a_node_in_no_fleet_opens_no_port_for_neighbours(echo_node: Node) -> None:
    assert echo_node.status()["mesh"] == {"state": "alone"}


async def test_two_nodes_of_a_fleet_know_and_serve_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(tmp_path)
    nodes: list[Node] = []
    for name in ("a", "b"):
        monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / name))
        enrolled(fleet.authority, tmp_path / name / "mesh", name)
        more: dict[str, object] = {"mesh_port": 0, "mesh_discover": "false"}
        if nodes:
            more["mesh_peers"] = f"127.0.0.1:{nodes[0].status()['mesh']['port']}"
        nodes.append(Node(settings(engine_kind="echo", tune_auto="false", **more)))
        await nodes[-1].start()
    first, second = nodes
    try:
        async with asyncio.timeout(30):
            while not all(node.status()["mesh"]["alive"] for node in nodes):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (row,) = second.status()["mesh"]["neighbours"].values()
        assert (row["name"], row["model"], row["state"]) == ("a", "echo", "alive")
        assert await ask(second, "hello there") == "hello there"
        assert "llm_mesh_neighbours" in await _text(f"{second.url}/metrics")
        begun = asyncio.get_running_loop().time()
        await first.stop(grace_s=5)
        assert asyncio.get_running_loop().time() - begun < 5, "who watches it does not hold it"
    finally:
        await second.stop(grace_s=0)
        await first.stop(grace_s=0)


async def _text(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()
