"""What neighbours say of themselves is bounded, whatever they send."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.mesh import sight
from node.mesh.sight import Sight

SEEN = Sight(
    id="0123456789abcdef",
    version="1",
    model="m",
    model_digest="d" * 64,
    context=2048,
    slots=8,
    free_slots=3,
    waiting=0,
    wait_s=0.0,
    prefill_s=0.002,
    decode_s=0.01,
    sketch=b"\x01\x02",
)


def test_what_was_written_is_read() -> None:
    assert sight.read(sight.write(SEEN)) == SEEN


def test_a_newer_node_may_say_more() -> None:
    more = {**msgspec.to_builtins(SEEN, builtin_types=(bytes,)), "colour": "green"}
    assert sight.read(msgspec.msgpack.encode(more)) == SEEN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("free_slots", -1), ("wait_s", -0.1), ("wait_s", float("nan")), ("sketch", bytes(9000)), ("id", "x" * 200)],
        *[("name", "\x1b]0;mine\x07"), ("model", "a\nb"), ("version", "\x9b2J")],  # it is shown on terminals
    ],
)
def test_what_is_out_of_bounds_is_refused(field: str, value: object) -> None:
    lie = {**msgspec.to_builtins(SEEN, builtin_types=(bytes,)), field: value}
    with pytest.raises(ValueError, match=r"Expected|large|malformed|finite"):
        sight.read(msgspec.msgpack.encode(lie))


def test_what_is_too_large_is_not_even_decoded() -> None:
    with pytest.raises(ValueError, match="more than"):
        sight.read(bytes(sight.MAX_BYTES + 1))


@given(st.binary(max_size=300))
def test_garbage_is_a_value_error_and_nothing_else(raw: bytes) -> None:
    try:
        sight.read(raw)
    except ValueError:
        pass
