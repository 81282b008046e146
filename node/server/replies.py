"""Values as OpenAI's response bodies and stream chunks. Pure: text and numbers in, bytes out.

All that a stream's chunks share is encoded once, so that one token costs one string's encoding and a concatenation.
Every chunk carries the resume cursor as an extension field, `"outpost": {"seq": N}`: all entries of the answer up to
number N went into this chunk and those before it, so that a reader goes on from N + 1.
A reply object serves one request, either piece by piece (`opening`, `piece`…, `closing`) or `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from node.errors import NodeError
from node.generation import Finished, Logprob, ModelInfo, Token
from node.server.calls import ArgumentsDelta, CallStart, ContentDelta, Delta, ToolCallParser
from node.stream.session import Piece

DONE = b"data: [DONE]\n\n"
_LEAST_LOGPROB = -9999.0  # what OpenAI writes for minus infinity, which JSON has not

encode = msgspec.json.encode


class Reply(Protocol):
    """One request's answer in the making.

    `least_level` is the lowest response level at which all of it can be told; `plain` the name under which a piece's
    text stands in a delta where it is all that a piece says, else "".
    """

    least_level: int
    plain: str

    def opening(self) -> bytes:
        """The events before the first token."""

    def rewind(self, last: int) -> bytes:
        """Tells a reader who is ahead of the journal that only entries up to `last` stand."""

    def piece(self, piece: Piece) -> bytes:
        """The events for a piece; may be empty."""

    def closing(self, end: Finished, cached_tokens: int, seq: int) -> bytes:
        """The events after the last entry, which was number `seq`; `[DONE]` included."""

    def whole(self, text: str, tokens: Sequence[Token], end: Finished, cached_tokens: int) -> bytes:
        """The body of a response that is not streamed."""

    def usage(self, end: Finished, cached_tokens: int) -> dict[str, Any]:
        """What the answer cost, in tokens."""


class _Reply:
    """What chat and text replies share: the constant parts of a chunk."""

    chunk_kind: str
    whole_kind: str

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        *,
        include_usage: bool = False,
        token_bytes: Callable[[int], bytes] | None = None,
        answer_cached: bool = False,
    ) -> None:
        """`token_bytes` gives a token id's bytes; None means that no logprobs were asked for.

        `answer_cached`: somebody got this answer before.
        """
        self._base = {"id": id, "created": created, "model": model}
        self._include_usage = include_usage
        self._token_bytes = token_bytes
        self._answer_cached = answer_cached
        self.least_level = 1 if token_bytes is None else 3
        self._head = b"data: " + encode({**self._base, "object": self.chunk_kind})[:-1] + b',"choices":['
        self._tail = (b'],"usage":null' if include_usage else b"]") + b',"outpost":{"seq":%d}}\n\n'

    def rewind(self, last: int) -> bytes:
        """A chunk without choices; only the extension field says something."""
        return self._head + b'],"outpost":{"seq":%d,"rewind":true}}\n\n' % last

    def _last(self, end: Finished, seq: int) -> bytes:
        """The end of the last choice's chunk: who answered, where that was not this node alone."""
        tail = self._tail % seq
        return tail[:-4] + b',"served_by":' + encode(end.places) + tail[-4:] if _elsewhere(end) else tail

    def _ending(self, end: Finished, cached_tokens: int, seq: int) -> bytes:
        if not self._include_usage:
            return DONE
        told = encode(self.usage(end, cached_tokens))
        return self._head + b'],"usage":' + told + b',"outpost":{"seq":%d}}\n\n' % seq + DONE

    def _body(self, choice: dict[str, Any], end: Finished, cached_tokens: int) -> bytes:
        return encode(
            {**self._base, "object": self.whole_kind, "choices": [choice], "usage": self.usage(end, cached_tokens)}
        )

    def usage(self, end: Finished, cached_tokens: int) -> dict[str, Any]:
        """What the answer cost, in tokens."""
        told = {
            "prompt_tokens": end.prompt_tokens,
            "completion_tokens": end.completion_tokens,
            "total_tokens": end.prompt_tokens + end.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }
        more: dict[str, Any] = {"answer_cached": True} if self._answer_cached else {}
        if _elsewhere(end):
            more["served_by"] = end.places
        return told | {"outpost": more} if more else told


class ChatReply(_Reply):
    """A chat's answer; with a parser, tool calls are taken out of its text."""

    chunk_kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        *,
        include_usage: bool = False,
        token_bytes: Callable[[int], bytes] | None = None,
        parser: ToolCallParser | None = None,
        answer_cached: bool = False,
    ) -> None:
        super().__init__(
            id, created, model, include_usage=include_usage, token_bytes=token_bytes, answer_cached=answer_cached
        )
        self._parser = parser
        self.plain = "" if parser or token_bytes else "content"
        if parser is not None:
            self.least_level = 3
        self._content_head = self._head + b'{"index":0,"delta":{"content":'
        self._content_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def opening(self) -> bytes:
        """The role, once and at once."""
        return self._chunk({"role": "assistant", "content": ""}, -1)

    def piece(self, piece: Piece) -> bytes:
        """Content and calls as far as they are decided."""
        if self._token_bytes is not None and piece.tokens:
            return self._piece_with_logprobs(piece, self._token_bytes)
        if self._parser is None:
            if not piece.text:
                return b""
            return self._content_head + encode(piece.text) + self._content_tail % (piece.cursor - 1)
        return self._chunks(self._parser.push(piece.text), piece.cursor - 1)

    def closing(self, end: Finished, cached_tokens: int, seq: int) -> bytes:
        """What was held back, the finish reason, the usage if asked for, and `[DONE]`."""
        held = self._chunks(self._parser.finish() if self._parser else [], seq)
        last = self._head + encode(self._choice({}, None, self._reason(end))) + self._last(end, seq)
        return held + last + self._ending(end, cached_tokens, seq)

    def whole(self, text: str, tokens: Sequence[Token], end: Finished, cached_tokens: int) -> bytes:
        """A chat.completion; `content` is null where there are only calls."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._parser is not None:
            deltas = [*self._parser.push(text), *self._parser.finish()]
            content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
            if calls := _calls(deltas):
                message |= {"content": content or None, "tool_calls": calls}
        logprobs = None if self._token_bytes is None else _chat_logprobs(tokens, self._token_bytes)
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": self._reason(end)}
        return self._body(choice, end, cached_tokens)

    def _piece_with_logprobs(self, piece: Piece, token_bytes: Callable[[int], bytes]) -> bytes:
        """The logprobs ride on the piece's first chunk, which may be otherwise empty."""
        logprobs = _chat_logprobs(piece.tokens, token_bytes)
        deltas = [ContentDelta(piece.text)] if self._parser is None else self._parser.push(piece.text)
        first, *others = deltas or [ContentDelta("")]
        seq = piece.cursor - 1
        return self._chunk(_delta(first), seq, logprobs) + self._chunks(others, seq)

    def _reason(self, end: Finished) -> str:
        called = self._parser is not None and self._parser.complete > 0
        return "tool_calls" if called and end.reason == "stop" else end.reason

    def _chunks(self, deltas: Sequence[Delta], seq: int) -> bytes:
        return b"".join(self._chunk(_delta(delta), seq) for delta in deltas)

    def _chunk(self, delta: dict[str, Any], seq: int, logprobs: Any = None, finish: str | None = None) -> bytes:
        return self._head + encode(self._choice(delta, logprobs, finish)) + self._tail % seq

    def _choice(self, delta: dict[str, Any], logprobs: Any, finish: str | None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


class TextReply(_Reply):
    """A text completion's answer."""

    chunk_kind = "text_completion"
    whole_kind = "text_completion"

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        *,
        include_usage: bool = False,
        token_bytes: Callable[[int], bytes] | None = None,
        answer_cached: bool = False,
    ) -> None:
        super().__init__(
            id, created, model, include_usage=include_usage, token_bytes=token_bytes, answer_cached=answer_cached
        )
        self._offset = 0
        self.plain = "" if token_bytes else "text"

    def opening(self) -> bytes:
        """Nothing: a text completion has no role to announce."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """One chunk with the text, unless there is nothing to say."""
        logprobs = self._logprobs(piece.tokens)
        return self._chunk(piece.text, logprobs, piece.cursor - 1) if piece.text or logprobs else b""

    def closing(self, end: Finished, cached_tokens: int, seq: int) -> bytes:
        """The finish reason, the usage if asked for, and `[DONE]`."""
        last = self._head + encode(self._choice("", None, end.reason)) + self._last(end, seq)
        return last + self._ending(end, cached_tokens, seq)

    def whole(self, text: str, tokens: Sequence[Token], end: Finished, cached_tokens: int) -> bytes:
        """A text_completion."""
        choice = {"index": 0, "text": text, "logprobs": self._logprobs(tokens), "finish_reason": end.reason}
        return self._body(choice, end, cached_tokens)

    def _chunk(self, text: str, logprobs: Any, seq: int, finish: str | None = None) -> bytes:
        return self._head + encode(self._choice(text, logprobs, finish)) + self._tail % seq

    def _choice(self, text: str, logprobs: Any, finish: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        """The legacy form: parallel lists; offsets count characters of the answer."""
        if self._token_bytes is None or not tokens:
            return None
        texts = [_text(token.piece) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [_finite(_logprob(token).value) for token in tokens],
            "top_logprobs": [
                {_text(self._token_bytes(id)): _finite(value) for id, value in _logprob(token).top} for token in tokens
            ],
            "text_offset": offsets,
        }


def error_body(error: NodeError) -> bytes:
    """OpenAI's error JSON; the hint, where there is one, closes the message."""
    message = f"{error.message} {error.hint}" if error.hint else error.message
    return encode({"error": {"message": message, "type": error.kind, "param": error.param, "code": error.code}})


def model_entry(info: ModelInfo) -> dict[str, Any]:
    """One model as the models list shows it."""
    return {"id": info.id, "object": "model", "created": info.created, "owned_by": "outpost"}


def _elsewhere(end: Finished) -> bool:
    """Whether anybody but this node answered."""
    return any(place != "local" for place in end.places)


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, CallStart):
        function = {"name": delta.name, "arguments": ""}
        return {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


def _calls(deltas: Iterable[Delta]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            calls.append({"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": ""}})
        elif isinstance(delta, ArgumentsDelta):
            calls[delta.index]["function"]["arguments"] += delta.text
    return calls


def _chat_logprobs(tokens: Sequence[Token], token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    content = [
        {
            **_entry(token.piece, _logprob(token).value),
            "top_logprobs": [_entry(token_bytes(id), value) for id, value in _logprob(token).top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(piece), "logprob": _finite(logprob), "bytes": list(piece)}


def _logprob(token: Token) -> Logprob:
    return token.logprob or Logprob(_LEAST_LOGPROB)


def _finite(value: float) -> float:
    return max(value, _LEAST_LOGPROB)


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
