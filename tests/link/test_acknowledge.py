"""When what came is acknowledged, and what finds no room."""

from __future__ import annotations

import math

import pytest

from node.link.acknowledge import ACK_S, LATE_S, WORTH, Acknowledgements
from node.link.departures import Stream
from node.link.packet import Ack, Data, Got, encode
from node.link.receiver import Receiver
from node.link.sender import Sender


def streams(count: int) -> dict[int, Stream]:
    return {slot: Stream(Sender(slot), Receiver(slot)) for slot in range(count)}


def test_an_acknowledgement_waits_a_moment_after_the_last() -> None:
    acks = Acknowledgements()
    assert acks.compose({}, 1000, 0.0) == ([], 0)
    assert acks.note(5, 1.0)
    acks.ask(1.0, WORTH, at_once=False)
    assert acks.due == 1.0, "there was none before"
    blocks, size = acks.compose({}, 1000, 1.01)
    assert blocks == [Ack(5, 1.01 - 1.0, 0)]
    assert size == len(encode(blocks[0]))
    acks.told(blocks, 1.01)
    assert acks.due == math.inf
    assert not acks.note(4, 1.02)
    acks.ask(1.02, WORTH, at_once=False)
    assert acks.due == 1.01 + ACK_S
    acks.ask(1.02, 60, at_once=True)
    assert acks.due == 1.02


def test_what_was_read_late_has_waited_here() -> None:
    """The delay counts from when the packet came, so that a busy end does not look like a full path."""
    acks = Acknowledgements()
    acks.note(5, 1.0)
    acks.ask(1.3, WORTH, at_once=True)
    (ack, *_), _ = acks.compose({}, 1000, 1.3)
    assert isinstance(ack, Ack)
    assert ack.delay == pytest.approx(0.3)


def test_little_is_acknowledged_late_and_together() -> None:
    acks = Acknowledgements()
    acks.ask(1.0, 60, at_once=False)
    assert acks.due == 1.0, "after a silence at once"
    acks.told(acks.compose({}, 1000, 1.0)[0], 1.0)
    acks.ask(1.03, 60, at_once=False)
    assert acks.due == 1.0 + LATE_S
    acks.ask(1.05, WORTH - 61, at_once=False)
    assert acks.due == 1.0 + LATE_S
    acks.ask(1.06, 1, at_once=False)
    assert acks.due == 1.06, "now it is worth a packet"
    acks.told(acks.compose({}, 1000, 1.06)[0], 1.06)
    acks.ask(1.07, 60, at_once=False)
    assert acks.due == 1.06 + LATE_S, "what was told is not owed"


def test_slots_that_find_no_room_have_their_turn() -> None:
    """Of many slots all are told, not always the same ones."""
    acks, open_ = Acknowledgements(), streams(40)
    told: list[int] = []
    for slot, stream in open_.items():
        stream.receiver.data(Data(slot, 3, [b"x"]))
        acks.touch(slot)
    acks.ask(0.0, 60, at_once=True)
    while acks.due <= 0.0:
        blocks, size = acks.compose(open_, 100, 0.0)
        assert size == sum(map(len, map(encode, blocks))) <= 100
        told += [block.slot for block in blocks if isinstance(block, Got)]
        acks.touch(0)  # it never stops
        acks.told(blocks, 0.0)
        if told.count(0) > 1:
            break
    assert set(told) == set(range(40))


def test_no_room_for_anything_is_no_loop() -> None:
    acks, open_ = Acknowledgements(), streams(1)
    acks.touch(0)
    acks.ask(0.0, 60, at_once=True)
    blocks, _ = acks.compose(open_, 20, 0.0)
    assert [type(block) for block in blocks] == [Ack]
    acks.told(blocks, 0.0)
    assert acks.due == ACK_S


def test_a_request_will_be_answered_and_a_reply_will_not() -> None:
    acks, known = Acknowledgements(), streams(2)
    assert not acks.answered_by(known)
    acks.touch(1)
    assert acks.answered_by(known)
    known[1].sender.finish()
    assert not acks.answered_by(known)
