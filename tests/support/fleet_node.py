"""A fleet without servers: a manager as the updater sees it, and a host whose models are there at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from node.errors import NodeError
from node.fleet.apply import Accept
from node.fleet.directive import Rollout
from node.fleet.membership import Clock
from node.fleet.pinned import Pinned
from node.fleet.profile import Profile, parse
from node.fleet.refusal import UnsignedProfile
from node.fleet.slots import digest_of
from node.generation import Finished, Model, Request, Sink, Token, TokenSource
from node.settings import Settings
from tests.support.service import INFO, ByteModel


def profile(name: str, *, slots: int = 2, more: str = "") -> Profile:
    """A profile for the echo engine; its slots show in the model which one serves."""
    text = f'name = "{name}"\ndescription = "{name}"\n\n[settings.engine]\nkind = "echo"\nslots = {slots}\n{more}'
    return parse(text, name)


GOLDEN = '\n[[golden]]\nprompt = "ping"\ntext = "ping"\n'
WRONG = '\n[[golden]]\nprompt = "ping"\ntext = "pong"\n'
TOO_FAST = "\n[floor]\ntokens_s = 1e6\n"


def rollout(chosen: Profile, revision: int = 1, **changes: object) -> Rollout:
    """A rollout of a profile to everybody, with a short probation."""
    values = {"name": "spring", "probation_s": 60.0} | changes
    return Rollout(revision=revision, profile=chosen.name, profile_sha256=digest_of(chosen), **values)  # type: ignore[arg-type]


@dataclass
class Found:
    rollouts: tuple[Rollout, ...] = ()


@dataclass
class FakeManager:
    """What `trust` and `fetch` offer; `failing` calls raise first."""

    found: Found = field(default_factory=Found)
    profiles: dict[str, Profile] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    looks: int = 0
    failing: list[NodeError] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    mend: Callable[[Profile], None] = lambda profile: None

    def wants(self, *rollouts: Rollout) -> None:
        self.found = Found(rollouts)

    def add(self, *profiles: Profile) -> None:
        self.profiles |= {digest_of(profile): profile for profile in profiles}

    async def refresh(self) -> Found:
        self.looks += 1
        self._fail()
        return self.found

    async def profile(self, rollout: Rollout) -> Profile:
        self._fail()
        if rollout.profile_sha256 not in self.profiles:
            raise UnsignedProfile("Nobody signed that.")
        return self.profiles[rollout.profile_sha256]

    async def tidy(self, keep: Collection[Profile]) -> None:
        self.kept = {profile.name for profile in keep}

    async def fetch(self, profile: Profile) -> None:
        self._fail()
        self.fetched.append(profile.name)
        self.mend(profile)

    def _fail(self) -> None:
        if self.failing:
            raise self.failing.pop(0)


class EchoSource:
    """Answers with the prompt, at once."""

    def submit(self, request: Request, sink: Sink) -> None:
        def answer() -> None:
            text = request.prompt * (1 + request.max_tokens) if request.ignore_eos else request.prompt
            for token in text[: request.max_tokens]:
                sink(Token(token, bytes([token % 256])))
            sink(Finished("stop", len(request.prompt), len(text)))

        asyncio.get_running_loop().call_soon(answer)

    def cancel(self, request_id: str) -> None:
        pass

    def hold(self, request_id: str, held: bool) -> None:
        pass


class EchoModel(ByteModel):
    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())


class FakeHost:
    """Serves what it is told; `failing` exchanges raise first."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model: Model = EchoModel(replace(INFO, can_chat=False))
        self.source: TokenSource = EchoSource()
        self.idle, self.broken = True, False
        self.failing: list[NodeError] = []
        self.exchanges: list[bool] = []

    async def exchange(
        self, settings: Settings, pinned: Pinned | None, accept: Accept, *, beside: bool, drain_s: float
    ) -> None:
        if self.failing:
            raise self.failing.pop(0)
        await accept(self.model, self.source)
        self.settings = settings
        self.exchanges.append(beside)


class Hands:
    """A clock that is moved by hand; midnight at 0."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.at, lambda: self.at, lambda: int(self.at // 60) % 1440, lambda: 0.5)
