"""The values that travel through the node, and the two contracts between its rooms.

A request goes down as one `Request`; events come back through a `Sink`: a `Started` when its prompt is begun, any
number of `Token`s, then exactly one `Finished`, `Embedded` or `Failed` (which may come without the others).
A `TokenSource` is anything that can do that: the engine's worker, the queue in front of it, a peer or the
cloud; sources wrap each other, so that every stage has one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

import msgspec

from node.errors import NodeError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer's text must match, in llguidance's terms."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str


Level = Literal["critical", "interactive", "standard", "background"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)  # the most urgent first


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: what limits, fairness and privacy go by. All are operators' names or digests, never keys or addresses.

    `session` is one conversation or device of a `user` (an API key), which belongs to a `tenant`; "" is unknown.
    """

    tenant: str = ""
    user: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a chat asked in OpenAI's terms, for an upstream that knows no token ids.

    `body` is the JSON object to send, without model, stream and length. `cloud` is the caller's own word on whether it
    may leave the fleet; "" is none. So many nodes have `passed` it up already, each to its cloud.
    """

    body: bytes
    cloud: Literal["", "allow", "never"] = ""
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of work for an engine. `logprobs` is how many alternatives to report per token; None is off.

    `level` and `ttl_s` (seconds that it may wait for its turn; None is forever) decide who runs now.

    `continued` are tokens of the answer that were generated before, in another life of the node or by another node:
    they count, and the answer goes on after them.

    Of several requests that are one call, the first is counted for all: `batch` is the tokens of all their prompts
    there, and 0 on the others. None is a call of its own.

    Without `drafts` no token of the answer is guessed, which changes nothing but the speed, its own and that of others.

    `asked` is None where nobody may answer who knows no token ids. `hops` is how many nodes have passed it on.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    kind: Literal["generate", "embed"] = "generate"
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    continued: tuple[int, ...] = ()
    caller: Caller = Caller()
    level: Level = "standard"
    ttl_s: float | None = None
    batch: int | None = None
    drafts: bool = True
    asked: Asked | None = None
    hops: int = 0

    @property
    def admitted(self) -> bool:
        """Whether it is part of what was let in before: by another life of the node, or with the first of its batch."""
        return bool(self.continued) or self.batch == 0


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the queue and holds a slot; `cached_tokens` of its prompt were warm already.

    `place` says who answers, where that may be somebody else; another one that goes on in its place says so again.
    """

    cached_tokens: int = 0
    place: str = ""


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural-log probability under the unmodified model, and the likeliest alternatives, best first."""

    value: float
    top: tuple[tuple[int, float], ...] = ()


# Of tokens and entries there are hundreds in every answer, and nothing in them can lead back to them: `gc=False` spares
# a quarter of their memory, and the collector the walk through all of them while everybody waits.


class Token(msgspec.Struct, frozen=True, gc=False):
    """One generated token; `piece` is its bytes, which need not be whole characters."""

    id: int
    piece: bytes
    logprob: Logprob | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One numbered piece of an answer; the last may be text without a token (what a false start held back)."""

    text: str
    token: Token | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation, with what it cost in tokens; `places` answered, one after the other, where told."""

    reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: int
    completion_tokens: int
    places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Embedded:
    """The answer to an `embed` request: a unit vector."""

    vector: tuple[float, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation broke; what was delivered before stands, and no more follows."""

    error: NodeError


End = Finished | Embedded | Failed
Event = Started | Token | End
Sink = Callable[[Event], None]


class TokenSource(Protocol):
    """Something that runs requests. Called on the event loop's thread; sinks are called there too."""

    def submit(self, request: Request, sink: Sink) -> None:
        """Accept `request` or raise a NodeError at once; `sink` is never called from inside `submit`."""

    def cancel(self, request_id: str) -> None:
        """Stop it within one step, at any stage; its sink gets `Finished("cancelled")`. Unknown ids are ignored."""

    def hold(self, request_id: str, held: bool) -> None:
        """Pause it, or let it go on: while held it makes no tokens and costs no time. Unknown ids are ignored."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is. `context` is per request, in tokens; `embedding_size` 0 means it cannot embed.

    `slots` requests run at the same time; beside them, `parked` more may be held.
    """

    id: str
    engine: str
    created: int
    context: int
    slots: int
    vocabulary_size: int
    embedding_size: int
    can_chat: bool
    parked: int = 0


class Model(Protocol):
    """What may be asked of the loaded model besides running it; callable from any thread."""

    @property
    def info(self) -> ModelInfo: ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text` as a whole prompt, with the model's own begin token; `special` parses markers in it."""

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes of `ids`, special tokens left out."""

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation in the model's own template; markers inside contents stay plain text."""

    def check(self, constraint: Constraint) -> None:
        """Compile `constraint` for later use; raises InvalidRequest when this model cannot honour it."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the node is right now. `kv_used` of `kv_total` cache cells hold tokens; `memory_free` is in bytes.

    `threads` decode on the CPU. `drafted` tokens were guessed so far, and `accepted` of them were right.
    """

    running: int
    waiting: int
    kv_used: int
    kv_total: int
    memory_free: int | None = None
    threads: int = 1
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Warmth:
    """What warm prefixes have done since the start, and what they take now.

    Of `requests` to generate, `hits` began with a warm prefix; `cached_tokens` of their `prompt_tokens` were not read,
    which saved `saved_s` seconds. `evictions` counts pieces of states that memory had no room for; `loads` and `saves`
    are state files read and written.
    """

    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    saved_s: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    evictions: int = 0
    loads: int = 0
    saves: int = 0


class Admission(Protocol):
    """What the node makes of requests before they run. `shape` and `recalls` may be asked from any thread."""

    @property
    def recalls(self) -> bool:
        """Whether an identical question's recent answer may be given now, to those who allow it."""

    def shape(self, request: Request) -> tuple[Request, tuple[str, ...]]:
        """`request` as it may run under the present load, and by what it was cut down, if it was."""

    def headers(self, request_id: str) -> Callable[[], Mapping[str, str]]:
        """What to tell the caller of a request that was just submitted of its limits, whenever that is told."""


class Prewarming(Protocol):
    """What may be asked of the part that keeps prefixes warm."""

    def why(self) -> list[dict[str, Any]]:
        """A row for each prefix that was decided about, the most saving first: plain values, no text and no tokens.

        `id`, `tenant` (None: everybody's), `kind`, `tokens`, `adds` (of them, beyond a shorter one), `per_hour`,
        `saves_s` an hour, `planned` ("memory", "disk"), how many tokens are `in_memory` and `on_disk`, and `why`.
        """

    async def forget(self) -> int:
        """Erase history and states, in memory and on disk; gives how many prefixes were known."""


class Service(Protocol):
    """What the server serves. `ready` only after a token was really decoded, and not while draining.

    The model can be exchanged while the node runs, so that what is asked of it is asked anew for each request.
    """

    @property
    def model(self) -> Model: ...

    @property
    def source(self) -> TokenSource: ...

    @property
    def admission(self) -> Admission: ...

    async def settled(self) -> None:
        """Wait while the model is being exchanged and there is none to ask; raises Unavailable after a while."""

    def source_of(self, model: Model) -> TokenSource:
        """Where requests whose tokens `model` made go in; raises Unavailable when it is not served any more."""

    async def activate(self, model: str, profile: str, probation_s: float) -> Mapping[str, Any]:
        """Begin to serve another model or profile, whichever is named; gives how far that is. See `fleet.choice`."""

    @property
    def sampling(self) -> Sampling:
        """What counts where a request names nothing else."""

    @property
    def prewarm(self) -> Prewarming: ...

    @property
    def ready(self) -> bool: ...

    @property
    def draining(self) -> bool: ...

    def load(self) -> Load: ...

    def warmth(self) -> Warmth: ...

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """What each part of the node says of itself, a section a part; plain values, seconds and bytes."""
