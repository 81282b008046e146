"""From a profile to a node that serves it, and back, while requests run.

What a profile changes at once is everything about the model: engine, model, sampling, queue, load and prewarm. The rest
of it (ports, links, streams, limits …) counts from the next start on, and is told as such.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from node.errors import ModelFileError, NodeError, SettingsError
from node.fleet.examine import Figures, examine, speed
from node.fleet.model_file import room_beside
from node.fleet.pinned import Pinned
from node.fleet.profile import Profile
from node.generation import Model, TokenSource
from node.models import weights
from node.settings import Settings

log = logging.getLogger(__name__)

HOT: Final = ("engine", "model", "sampling", "queue", "load", "prewarm")
DRAIN_S = 600.0  # how long running streams get to finish where there is no memory for two models


class Accept(Protocol):
    """Looks at a model before anybody else may use it; raises NodeError if it will not do."""

    async def __call__(self, model: Model, source: TokenSource) -> None: ...


class Host(Protocol):
    """What serves; `node.served` behind the runtime."""

    @property
    def model(self) -> Model: ...

    @property
    def source(self) -> TokenSource:
        """Where this model is asked, and nobody else."""

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""

    @property
    def broken(self) -> bool:
        """Whether the engine has given up."""

    async def exchange(
        self, settings: Settings, pinned: Pinned | None, accept: Accept, *, beside: bool, drain_s: float
    ) -> None:
        """Serve another model if it loads and is accepted; else raise, and what served before serves on."""


class Damaged(ModelFileError):
    """The model's file is not the one that the profile names: it must be fetched again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How settings come from a profile: `started` with these, `of` says which another one would give."""

    started: Settings
    of: Callable[[Profile | None], Settings]

    def hot(self, profile: Profile | None) -> Settings:
        """What the profile gives now; the rest stays as the process was started. Raises SettingsError."""
        wanted = located(profile, self.of(profile))
        return msgspec.structs.replace(self.started, **{name: getattr(wanted, name) for name in HOT})

    def needs_restart(self, profile: Profile | None) -> list[str]:
        """The settings of the profile that count only from the next start on."""
        wanted = self.of(profile)
        return [
            f"{name}.{key}"
            for name in self.started.__struct_fields__
            if name not in HOT
            for key in getattr(wanted, name).__struct_fields__
            if getattr(getattr(wanted, name), key) != getattr(getattr(self.started, name), key)
        ]


class Applier:
    """Puts profiles in charge of `host`. `serving` is the one that is."""

    def __init__(
        self,
        host: Host,
        terms: Terms,
        serving: Profile | None,
        room: Callable[[Settings], bool] = room_beside,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.terms, self.serving = terms, serving
        self.needs_restart: list[str] = []  # of the profile that serves; the process was started with the first one's
        self._host, self._room, self._clock = host, room, clock

    async def switch(self, profile: Profile) -> Figures:
        """Load, examine, and serve it; raises Damaged, Unfit or what loading raises, and then nothing has changed."""
        settings = await self.settings(profile)
        seen = Figures()

        async def accept(model: Model, source: TokenSource) -> None:
            nonlocal seen
            seen = await examine(model, source, profile.golden, self._clock)

        await self._exchange(profile, settings, accept)
        return seen

    async def restore(self, profile: Profile | None) -> None:
        """Serve what was served before; raises NodeError, and then what serves now serves on."""
        if self.is_serving(profile):
            return

        async def accept(model: Model, source: TokenSource) -> None:
            """It was good enough before."""

        await self._exchange(profile, await self.settings(profile), accept)

    async def measure(self) -> Figures:
        """How fast the served model is just now; raises NodeError."""
        return await speed(self._host.model, self._host.source, self._clock)

    async def verify(self, profile: Profile) -> None:
        """Read the model's file once; raises Damaged where it is not the one that is promised."""
        if (pinned := await self._pin(profile, await self.settings(profile))) is not None:
            pinned.close()

    async def settings(self, profile: Profile | None) -> Settings:
        """What the profile gives now, in a thread: settings are read, and what tuning wrote is hashed with them."""
        return await asyncio.to_thread(self.terms.hot, profile)

    async def may_switch(self, profile: Profile) -> str:
        """What to wait for before a switch; "" where nothing is."""
        if not self._host.idle and not self._room(await self.settings(profile)):
            return "memory for two models, or a moment without streams"
        return ""

    @property
    def broken(self) -> bool:
        """Whether the served engine has given up."""
        return self._host.broken

    def is_serving(self, profile: Profile | None) -> bool:
        """Whether that is what is served."""
        return _text(profile) == _text(self.serving)

    async def _exchange(self, profile: Profile | None, settings: Settings, accept: Accept) -> None:
        pinned = await self._pin(profile, settings)
        try:
            beside = self._room(settings)
            await self._host.exchange(settings, pinned, accept, beside=beside, drain_s=DRAIN_S)
        except NodeError:
            if pinned is not None:
                pinned.close()
            raise
        self.serving = profile
        try:  # in a thread, and not at each look: it reads the settings, and what tuning wrote is hashed with them
            self.needs_restart = await asyncio.to_thread(self.terms.needs_restart, profile)
        except SettingsError as error:  # of a file that was edited meanwhile; the next start will say so, too
            log.warning("what counts from the next start on is not known", extra={"reason": error.message})
            self.needs_restart = []

    async def _pin(self, profile: Profile | None, settings: Settings) -> Pinned | None:
        try:
            return await asyncio.to_thread(pin, profile, settings)
        except ModelFileError as error:
            raise Damaged(error.message, hint=error.hint) from error


def pin(profile: Profile | None, settings: Settings) -> Pinned | None:
    """The verified file of the profile's model; None where it promises none, or another one is served instead.

    Reads the whole file. Raises ModelFileError where it is missing or is not what the profile promises.
    """
    if profile is None or not _is_promised(profile, settings):
        return None
    if settings.model.variant and settings.model.variant != str(_fetched(profile)):
        return None  # made from it by this node
    return Pinned(weights.served(settings.model), profile.model_sha256)


def located(profile: Profile | None, settings: Settings) -> Settings:
    """The settings with the profile's model in the file that a fleet brought, where it brought one.

    That has the name of its digest, so that it can lie beside another file that people call the same.
    """
    if profile is None or not _is_promised(profile, settings) or not _fetched(profile).exists():
        return settings
    model = msgspec.structs.replace(settings.model, variant=str(_fetched(profile)))
    return msgspec.structs.replace(settings, model=model)


def _fetched(profile: Profile) -> Path:
    return weights.folder() / f"{profile.model_sha256}.gguf"


def _is_promised(profile: Profile, settings: Settings) -> bool:
    """Whether the profile says which file its model is, and this node's own settings leave it at that."""
    same = settings.model.name == profile.settings.model.name
    return bool(profile.model_sha256) and settings.engine.kind == "llama" and same


def _text(profile: Profile | None) -> str | None:
    return None if profile is None else profile.text
