"""Who asks, how urgently, and how long they will wait: from an API key, headers and body fields. Pure.

What a client names (a session, a person) and where it calls from leave here only as digests under a secret that dies
with the process. A body counts before the headers; both count before what the key's holder has by default. A key may
have a ceiling: what asks for more runs at the ceiling, and every response says the level it ran at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from node.admission.quota import Holder, Quotas
from node.errors import InvalidRequest, Unsupported
from node.generation import LEVELS, Caller, Level, Request

PRIORITY: Final = "Outpost-Priority"
TTL: Final = "Outpost-TTL"
SESSION: Final = "Outpost-Session"
CACHED: Final = "Outpost-Cached"
CLOUD: Final = "Outpost-Cloud"
PASSED: Final = "Outpost-Passed"
MOST_TTL_S: Final = 7 * 86_400.0
_TIERS: Final[Mapping[str, Level | None]] = {
    **{"auto": None, "default": None},
    **{"priority": "interactive", "flex": "background"},
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says itself; None and "" where it says nothing. `session` is the client's own name for it.

    `recall` allows an identical question's recent answer when the node is overloaded. `cloud` is whether it may leave
    the fleet; so many nodes have `passed` it up, where it comes from one.
    """

    level: Level | None = None
    ttl_s: float | None = None
    session: str = ""
    recall: bool = False
    cloud: Literal["", "allow", "never"] = ""
    passed: int = 0


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that say who asks and how urgently; the last three are OpenAI's names for whom it is for."""

    priority: Any = None
    service_tier: str | None = None
    ttl_s: float | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


def wish_of(body: Asking) -> Wish:
    """What a body asks for; raises InvalidRequest with the field in `param`."""
    if body.service_tier is not None and body.service_tier not in _TIERS:
        tiers = ", ".join(_TIERS)
        raise Unsupported(f"This node knows these values of `service_tier`: {tiers}.", param="service_tier")
    level = _TIERS[body.service_tier] if body.service_tier else None
    if body.priority is not None:
        level = _level(body.priority, "priority")
    session = body.prompt_cache_key or body.safety_identifier or body.user or ""
    return Wish(level, None if body.ttl_s is None else _ttl(body.ttl_s, "ttl_s"), session)


def wish_in(headers: Mapping[str, str]) -> Wish:
    """What the headers ask for; raises InvalidRequest with the header in `param`."""
    level, ttl, recall = headers.get(PRIORITY), headers.get(TTL), headers.get(CACHED, "0")
    if recall not in ("0", "1"):
        raise InvalidRequest(f"The header {CACHED} must be 0 or 1.", param=CACHED)
    return Wish(
        None if level is None else _level(level.strip().lower(), PRIORITY),
        None if ttl is None else _ttl(_number(ttl), TTL),
        headers.get(SESSION, ""),
        recall == "1",
        _cloud(headers.get(CLOUD, "").strip().lower()),
        _passed(headers.get(PASSED, "0")),
    )


@dataclass(frozen=True, slots=True)
class Asker:
    """One client as its connection shows it; `digest` hides what it is given. `wish` is what its headers say."""

    user: str
    holder: Holder
    wish: Wish
    address: str
    digest: Callable[[str], str]

    def allows_recall(self, wish: Wish) -> bool:
        """Whether a recent answer to the same question would do."""
        return wish.recall or self.wish.recall

    def stamp(self, request: Request, wish: Wish) -> Request:
        """`request` with its caller, level and time to live, given what its body says."""
        level = wish.level or self.wish.level or self.holder.level
        if LEVELS.index(level) < LEVELS.index(self.holder.ceiling):
            level = self.holder.ceiling
        # The address last: many people may share one, and one may have many.
        name = wish.session or self.wish.session or f"\0{self.address}"
        caller = Caller(self.holder.tenant, self.user, self.digest(f"{self.user}\0{name}"))
        asked = request.asked and replace(request.asked, cloud=self.wish.cloud, passed=self.wish.passed)
        ttl_s = self.wish.ttl_s if wish.ttl_s is None else wish.ttl_s
        return replace(request, caller=caller, level=level, ttl_s=ttl_s, asked=asked)


class Callers:
    """Tells clients apart; `quotas` say who holds which key."""

    def __init__(self, secret: bytes, quotas: Quotas) -> None:
        self._secret = secret
        self._quotas = quotas

    def asker(self, key: str, address: str, headers: Mapping[str, str]) -> Asker:
        """Who sends a request with this API key ("" where the node asks for none) from this address."""
        user = user_of(key)
        return Asker(user, self._quotas.holder(user), wish_in(headers), address, self._digest)

    def returning(self, user: str, wish: Wish) -> Asker:
        """Who asked in another life of the node; its sessions and address of then are not known any more."""
        return Asker(user, self._quotas.holder(user), wish, "later", self._digest)

    def _digest(self, text: str) -> str:
        data = text.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, key=self._secret, digest_size=12).hexdigest()


def user_of(key: str) -> str:
    """The user that an API key stands for: a digest, since keys are too long and random to be guessed from one."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() if key else ""


def _level(value: Any, param: str) -> Level:
    if value not in LEVELS:
        raise InvalidRequest(f"`{param}` must be one of: {', '.join(LEVELS)}.", param=param)
    return LEVELS[LEVELS.index(value)]


def _cloud(text: str) -> Literal["", "allow", "never"]:
    if text not in ("", "allow", "never"):
        raise InvalidRequest(f"The header {CLOUD} must be allow or never.", param=CLOUD)
    return text  # type: ignore[return-value]  # it was just compared


def _passed(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 4):
        raise InvalidRequest(f"The header {PASSED} must be a small number.", param=PASSED)
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _ttl(seconds: float, param: str) -> float:
    if not 0 < seconds <= MOST_TTL_S:
        raise InvalidRequest(f"`{param}` must be more than 0 and at most {MOST_TTL_S:.0f} seconds.", param=param)
    return seconds
