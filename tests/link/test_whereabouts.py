"""Where the other end is, and what may go there before it has shown that."""

from __future__ import annotations

import os

from node.link import packet
from node.link.packet import Challenge, Response
from node.link.whereabouts import AMPLIFICATION, CHALLENGE_SIZE, Whereabouts

HEAD_AND_TAG = packet.HEAD.size + 16
FULL = packet.MAX_DATAGRAM - HEAD_AND_TAG


def node(address: object = None) -> Whereabouts:
    return Whereabouts(address, client=False, entropy=os.urandom)


def test_a_client_may_say_what_it_likes() -> None:
    where = Whereabouts("node", client=True, entropy=os.urandom)
    assert where.room() == FULL
    assert where.question() == []
    where.moved("another node")
    assert (where.address, where.proven) == ("another node", True)


def test_nothing_goes_to_an_address_that_nothing_came_from() -> None:
    where = node()
    assert where.room() < 0
    assert where.question() == [], "there is nobody to ask yet"
    where.moved("here")
    where.came(500, "elsewhere")
    assert where.room() < 0


def test_an_address_that_is_not_proven_gets_three_times_what_came_from_it() -> None:
    where = node()
    where.moved("here")
    where.came(100, "here")
    assert where.room() == AMPLIFICATION * 100 - HEAD_AND_TAG
    where.left(250)
    assert where.room() + HEAD_AND_TAG == 50
    where.came(10_000, "here")
    assert where.room() == FULL, "a datagram is never longer"
    where.moved("there")
    assert where.room() == -HEAD_AND_TAG


def test_the_right_answer_proves_it() -> None:
    where = node()
    where.moved("here")
    [question] = where.question()
    assert len(packet.encode(question)) == CHALLENGE_SIZE
    where.answered(Response(b"nonsense"))
    assert not where.proven
    where.answered(Response(question.token))
    assert where.proven
    assert where.question() == []
    where.answered(Response(b"nonsense"))
    assert where.proven


def test_each_new_address_has_a_question_of_its_own() -> None:
    where = node()
    where.moved("here")
    [first] = where.question()
    where.moved("there")
    [second] = where.question()
    assert first != second
    where.answered(Response(first.token))
    assert not where.proven


def test_a_question_is_answered_until_that_has_come() -> None:
    where = Whereabouts("node", client=True, entropy=os.urandom)
    assert not where.owes
    assert where.answer() == []
    where.asked(Challenge(b"8 bytes!"))
    assert where.owes
    assert where.answer() == [Response(b"8 bytes!")]
    where.said(7)
    assert not where.owes
    assert where.unsure
    where.acknowledged(6)
    assert where.unsure
    where.acknowledged(8)
    assert not where.unsure


def test_only_a_clients_first_words_are_padded() -> None:
    client = Whereabouts("node", client=True, entropy=os.urandom)
    assert len(client.padded(b"hello", 0, heard=False)) == 550
    assert len(client.padded(b"hello", 2, heard=False)) == 200
    assert client.padded(b"hello", 3, heard=False) == b"hello"
    assert client.padded(b"hello", 0, heard=True) == b"hello"
    assert node().padded(b"hello", 0, heard=False) == b"hello"
