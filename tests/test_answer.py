import pytest

from node import errors
from node.answer import Answer, ToolCall, Usage
from node.chunks import BrokenStream, Chunk, chunk_of


def _take(answer: Answer, event: str, at: float, *, fresh: bool = True) -> str | None:
    return answer.take(chunk_of(event), at, fresh=fresh)


def _text(content: str, more: str = "") -> str:
    return '{"choices":[{"index":0,"delta":{"content":"' + content + '"}' + more + "}]}"


def test_an_answer_adds_up() -> None:
    answer = Answer(started=10.0)
    assert _take(answer, '{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}', 11.0) == ""
    assert _take(answer, _text("Hel"), 12.0) == "Hel"
    assert _take(answer, _text("lo", ',"finish_reason":null,"logprobs":null'), 14.0) == "lo"
    assert _take(answer, '{"id":"c1","model":"m","choices":[{"delta":{},"finish_reason":"stop"}]}', 14.5) is None
    usage = '{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}'
    assert _take(answer, '{"choices":[],"usage":' + usage + "}", 14.6) is None
    done = answer.done(15.0)
    assert done.usage == Usage(7, 5, 3)
    assert (done.finish_reason, done.model, done.id, done.tool_calls) == ("stop", "m", "c1", ())
    assert (done.ttft_s, done.total_s, done.tokens_per_second) == (2.0, 5.0, 2.0)


def test_an_answer_without_text_or_usage_claims_no_figures() -> None:
    answer = Answer(started=1.0)
    _take(answer, '{"choices":[{"delta":{},"finish_reason":"length"}],"usage":null}', 2.0)
    done = answer.done(3.0)
    assert (done.usage, done.ttft_s, done.tokens_per_second, done.total_s) == (None, None, None, 2.0)


def test_tool_calls_are_joined() -> None:
    answer = Answer(0.0)
    for delta in (
        '{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}',
        '{"index":0,"function":{"arguments":"{\\"x\\":"}}',
        '{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}',
        '{"index":0,"function":{"arguments":"1}"}}',
    ):
        assert _take(answer, '{"choices":[{"delta":{"content":null,"tool_calls":[' + delta + "]}}]}", 0.0) is None
    _take(answer, '{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}', 0.0)
    assert answer.done(0.0).tool_calls == (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "{}"))


def test_an_answer_without_an_end_is_broken() -> None:
    answer = Answer(0.0)
    _take(answer, _text("x"), 0.0)
    with pytest.raises(BrokenStream):
        answer.done(1.0)


def test_an_error_event_becomes_its_class() -> None:
    event = '{"error":{"message":"boom","type":"server_error","param":null,"code":"engine_failed"}}'
    with pytest.raises(errors.EngineFailed, match="boom"):
        _take(Answer(0.0), event, 0.0)


def test_of_a_repeated_chunk_only_the_end_counts() -> None:
    answer = Answer(0.0)
    assert _take(answer, _text("x"), 1.0, fresh=False) is None
    assert answer.first is None
    _take(answer, '{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}', 2.0, fresh=False)
    assert answer.done(3.0).finish_reason == "stop"


def test_calls_and_the_end_can_be_taken_back() -> None:
    answer = Answer(0.0)
    for seq, part in ((1, '"id":"a","function":{"name":"f","arguments":"{"}'), (2, '"function":{"arguments":"1}"}')):
        chunk = '{"choices":[{"delta":{"tool_calls":[{"index":0,' + part + f'}}]}}}}],"outpost":{{"seq":{seq}}}}}'
        _take(answer, chunk, 0.0)
    _take(answer, '{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}', 0.0)
    answer.forget(1)
    with pytest.raises(BrokenStream):
        answer.done(1.0)
    answer.take(chunk_of('{"choices":[{"delta":{},"finish_reason":"length"}]}'), 0.0)
    assert answer.done(1.0).tool_calls == (ToolCall("a", "f", "{"),)


def test_a_chunk_without_choices_says_nothing() -> None:
    assert Answer(0.0).take(Chunk(), 0.0) is None
