"""What one answer has said so far, without I/O: chunks -> text, tool calls and the closing figures."""

from __future__ import annotations

from dataclasses import dataclass

from node.chunks import BrokenStream, Chunk, Function, SaidUsage, ToolDelta, error_from


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer cost, in tokens; `cached_tokens` of the prompt came from a warm prefix."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function the model wants called; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer; `at` is `time.perf_counter()` when it arrived.

    `seq` is the number of the answer's last entry in it: everything up to there has come. None where nobody numbers.
    """

    text: str
    at: float
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class TextRewind:
    """The node lost what it had sent (a power cut): forget `text_dropped`, the last characters; they are made anew.

    What stands are the entries up to number `to_seq`. Only resumable answers can be rewound.
    """

    to_seq: int
    text_dropped: str
    at: float


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer. Seconds count from the sending of the request; None where no text or no usage came.

    `resumes` is how often the connection was lost and the answer taken up again; `stalls` are gaps of more than a
    second between two pieces of text, `stalled_s` all of them together.
    """

    finish_reason: str
    usage: Usage | None
    ttft_s: float | None
    total_s: float
    tokens_per_second: float | None
    model: str
    id: str
    tool_calls: tuple[ToolCall, ...] = ()
    resumes: int = 0
    stalls: int = 0
    stalled_s: float = 0.0


class Answer:
    """What one stream has said so far."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.first: float | None = None
        self.last = 0.0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.id = self.model = ""
        self._called: list[tuple[int, ToolDelta]] = []

    def take(self, chunk: Chunk, at: float, *, fresh: bool = True) -> str | None:
        """The text in one chunk, None where it has none; raises the error that it carries.

        One that is not `fresh` came before: of it only what closes the answer counts.
        """
        if chunk.error is not None:
            raise error_from(500, chunk.error)
        if chunk.usage is not None:
            self.usage = _count(chunk.usage)
        if not chunk.choices:
            return None
        choice = chunk.choices[0]
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
            self.id, self.model = chunk.id, chunk.model
        if not fresh:
            return None
        if choice.delta.tool_calls:
            seq = chunk.outpost.seq if chunk.outpost else 0
            self._called += [(seq, delta) for delta in choice.delta.tool_calls]
        if choice.delta.content:
            if self.first is None:
                self.first = at
            self.last = at
        return choice.delta.content

    def forget(self, seq: int) -> None:
        """Take back what entries after number `seq` said of tool calls, and the end."""
        self._called = [(number, delta) for number, delta in self._called if number <= seq]
        self.finish_reason = None

    def done(self, at: float) -> Done:
        """The closing event; raises BrokenStream when no choice was ever finished."""
        if self.finish_reason is None:
            raise BrokenStream("The node ended the stream without saying why the answer is finished.")
        ttft = None if self.first is None else self.first - self.started
        return Done(
            finish_reason=self.finish_reason,
            usage=self.usage,
            ttft_s=ttft,
            total_s=at - self.started,
            tokens_per_second=self._rate(),
            model=self.model,
            id=self.id,
            tool_calls=self._calls(),
        )

    def _calls(self) -> tuple[ToolCall, ...]:
        calls: dict[int, list[str]] = {}
        for _, delta in self._called:
            call = calls.setdefault(delta.index, ["", "", ""])
            function = delta.function or Function()
            call[0] += delta.id or ""
            call[1] += function.name or ""
            call[2] += function.arguments or ""
        return tuple(ToolCall(*calls[index]) for index in sorted(calls))

    def _rate(self) -> float | None:
        """Tokens per second after the first one, so that the prompt's share does not count."""
        tokens = self.usage.completion_tokens if self.usage else 0
        seconds = 0.0 if self.first is None else self.last - self.first
        return (tokens - 1) / seconds if tokens > 1 and seconds > 0 else None


def _count(usage: SaidUsage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, (details.cached_tokens or 0) if details else 0)
