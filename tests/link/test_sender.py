"""What a packet carries of a reply."""

from __future__ import annotations

import pytest

from node.link import packet, pairs
from node.link.frame import crc32
from node.link.packet import Block, Data, End, Got, Repair
from node.link.sender import MAX_CHUNK, SPAN, Sender


def numbers(blocks: list[Block]) -> list[int]:
    return [block.first + i for block in blocks if isinstance(block, Data) for i in range(len(block.chunks))]


def size(blocks: list[Block]) -> int:
    return sum(len(packet.encode(block)) for block in blocks)


def filled(count: int, chunk: bytes = b"abcde") -> Sender:
    sender = Sender(3)
    for _ in range(count):
        sender.push(chunk)
    return sender


def test_a_packet_carries_all_that_is_not_acknowledged() -> None:
    sender = filled(3)
    assert sender.fresh
    assert sender.backlog == 15
    assert numbers(sender.compose(1000, 1.0, 0.2, 2)) == [0, 1, 2]
    assert not sender.fresh
    sender.push(b"new")
    assert numbers(sender.compose(1000, 1.1, 0.2, 2)) == [0, 1, 2, 3]
    assert sender.got(Got(3, 2), 1.1)
    assert numbers(sender.compose(1000, 1.2, 0.2, 2)) == [2, 3]


def test_what_came_out_of_order_is_not_repeated() -> None:
    sender = filled(6)
    sender.compose(1000, 1.0, 0.2, 2)
    sender.got(Got(3, 1, [(1, 2), (1, 1)]), 0.5)
    blocks = sender.compose(1000, 1.1, 0.2, 2)
    assert numbers(blocks) == [1, 4]
    assert len(blocks) == 2


def test_a_chunk_is_late_only_if_a_later_packet_came() -> None:
    sender = filled(2)
    sender.compose(1000, 1.0, 0.2, 2)
    sender.got(Got(3, 0, [(1, 1)]), as_of=0.9)
    assert not sender.late
    sender.got(Got(3, 0, [(1, 1)]), as_of=1.1)
    assert sender.late
    sender.compose(1000, 1.2, 0.2, 2)
    assert not sender.late


def test_over_budget_symbols_cover_the_window() -> None:
    sender = filled(40, b"x" * 20)
    for _ in range(10):
        sender.compose(400, 1.0, 9.0, 2)
    assert not sender.fresh
    sender.push(b"new")
    blocks = sender.compose(120, 1.1, 9.0, 2)
    assert size(blocks) <= 120
    assert numbers(blocks) == [40]
    (repair,) = [block for block in blocks if isinstance(block, Repair)]
    assert (repair.first, repair.count, len(repair.symbols)) == (0, 40, 2)
    (again,) = [block for block in sender.compose(120, 1.2, 9.0, 2) if isinstance(block, Repair)]
    assert again.symbol == repair.symbol + 2, "symbols are never repeated"


def test_overdue_chunks_go_before_new_ones() -> None:
    sender = filled(40, b"x" * 20)
    for _ in range(10):
        sender.compose(400, 1.0, 9.0, 2)
    sender.push(b"new")
    for _ in range(10):
        sender.push(b"y" * 20)
    blocks = sender.compose(200, 2.0, 0.5, 2)
    assert numbers(blocks)[0] == 0
    assert 49 not in numbers(blocks)
    assert size(blocks) <= 200


def test_a_lean_packet_repeats_the_one_before() -> None:
    sender = filled(2, b"x" * 5)
    assert numbers(sender.compose(200, 1.0, 9.0, 0)) == [0, 1]
    sender.push(b"no word: it is long")
    assert numbers(sender.compose(200, 1.1, 9.0, 0)) == [0, 1, 2]
    sender.push(b"a")
    assert numbers(sender.compose(200, 1.2, 9.0, 0)) == [2, 3], "more bytes than are worth a third time"
    sender.push(b"b")
    assert numbers(sender.compose(200, 1.3, 9.0, 0)) == [2, 3, 4], "so few that they are"
    sender.push(b"c")
    (block,) = sender.compose(200, 1.4, 9.0, 0)
    assert block == Data(3, 5, [b"c"], 1, 1, pairs.parity([b"a"], [b"b"])), "and words are paired"


def test_a_lean_packet_of_words_repairs_the_two_before_it() -> None:
    sender = filled(2)
    sender.compose(200, 1.0, 9.0, 0)
    sender.push(b"two")
    sender.compose(200, 1.1, 9.0, 0)
    sender.push(b"three")
    sender.push(b"four")
    sender.finish()
    end, block = sender.compose(200, 1.2, 9.0, 0)
    assert isinstance(end, End), "what is paired goes last, and so need not say how long it is"
    assert block == Data(3, 3, [b"three", b"four"], 2, 1, pairs.parity([b"abcde"] * 2, [b"two"]))


def test_news_go_before_what_repairs() -> None:
    sender = filled(2)
    sender.compose(200, 1.0, 9.0, 0)
    sender.push(b"two")
    sender.compose(200, 1.1, 9.0, 0)
    for _ in range(3):
        sender.push(b"three")
    (block,) = sender.compose(25, 1.2, 9.0, 0)
    assert block == Data(3, 3, [b"three"] * 3)


def test_only_what_goes_last_is_paired() -> None:
    sender = filled(1)
    for now in (1.0, 1.1):
        sender.compose(200, now, 9.0, 0)
        sender.push(b"other")
    assert numbers(sender.compose(200, 1.2, 9.0, 0, alone=False)) == [0, 1, 2]


@pytest.mark.parametrize("budget", range(12, 40))
def test_what_is_paired_is_a_block_of_its_own_and_fits(budget: int) -> None:
    """The chunk before is lost: as chunks, it and the news would be one block."""
    sender = filled(1)
    for now in (1.0, 1.1):
        sender.compose(200, now, 9.0, 0)
        sender.push(b"x")
    sender.got(Got(3, 0, [(2, 0)]), as_of=1.2)
    blocks = sender.compose(budget, 1.2, 9.0, 0)
    assert size(blocks) <= budget
    assert numbers(blocks)[:1] == [0]


def test_a_lean_packet_brings_what_is_lost_before_news() -> None:
    """Where there are always more news than find room, nobody would read on before the text's end."""
    sender = filled(40)
    assert numbers(sender.compose(40, 1.0, 9.0, 0)) == [0, 1, 2, 3, 4]
    assert numbers(sender.compose(40, 1.5, 9.0, 0)) == [5, 6, 7, 8, 9]
    sender.got(Got(3, 0, [(5, 5)]), as_of=1.5)
    assert numbers(sender.compose(40, 2.0, 9.0, 0))[:5] == [0, 1, 2, 3, 4]
    assert min(numbers(sender.compose(40, 2.5, 9.0, 0))) == 10


def test_what_is_long_goes_twice_only() -> None:
    sender = filled(1)
    for number in range(1, 4):
        sender.compose(200, 1.0 + number, 9.0, 0)
        sender.push(b"%d" % number * 16)
    assert numbers(sender.compose(200, 9.0, 99.0, 0)) == [2, 3]


def test_the_end_goes_with_the_last_chunks() -> None:
    sender = filled(2)
    sender.finish(b"meta")
    *data, end = sender.compose(1000, 1.0, 0.2, 2)
    assert numbers(data) == [0, 1]
    assert isinstance(end, End)
    assert (end.chunks, end.size, end.meta) == (2, 10, b"meta")
    assert sender.waiting
    sender.got(Got(3, 2), 1.0)
    assert sender.waiting, "the end itself is not acknowledged"
    assert sender.compose(1000, 1.1, 0.2, 2) == [end]
    sender.got(Got(3, 2, whole=True), 1.0)
    assert sender.done
    assert not sender.waiting


def test_the_end_waits_for_chunks_that_found_no_room() -> None:
    sender = filled(30, b"x" * 20)
    sender.finish()
    seen = []
    while sender.fresh:
        blocks = sender.compose(150, 1.0, 9.0, 2)
        assert size(blocks) <= 150
        seen.append(any(isinstance(block, End) for block in blocks))
    assert seen == [False] * (len(seen) - 1) + [True]


def test_a_copy_is_the_last_chunks_without_what_came() -> None:
    sender = filled(8)
    assert sender.copy(1000) == []
    sender.compose(1000, 1.0, 0.2, 2)
    assert numbers(sender.copy(1000)) == [4, 5, 6, 7]
    sender.got(Got(3, 5, [(1, 1)]), 0.5)
    assert numbers(sender.copy(1000)) == [5, 7]
    assert numbers(sender.copy(13)) == [7]


def test_where_losses_are_single_a_copy_is_what_was_new_and_the_chunk_before() -> None:
    sender = filled(3)
    sender.compose(1000, 1.0, 0.2, 2)
    sender.push(b"new 3")
    sender.push(b"new 4")
    sender.compose(1000, 1.1, 0.2, 2)
    assert numbers(sender.copy(1000)) == [1, 2, 3, 4]
    assert numbers(sender.copy(1000, bursts=False)) == [2, 3, 4]
    sender.got(Got(3, 0, [(2, 2), (1, 0)]), 1.0)
    assert numbers(sender.copy(1000, bursts=False)) == [4]
    sender.got(Got(3, 5), 1.0)
    assert sender.copy(1000, bursts=False) == []


def test_what_was_lost_goes_twice_on_a_full_path_as_what_is_new_does() -> None:
    sender = filled(1)
    for now in (1.0, 1.1, 1.2, 1.3):
        sender.compose(60, now, 9.0, 0)
        sender.push(b"other")
    sender.got(Got(3, 0, [(1, 1)]), 1.35)
    assert 0 in numbers(sender.compose(60, 1.4, 9.0, 0)), "known to be lost"
    sender.push(b"other")
    assert 0 in numbers(sender.compose(60, 1.5, 9.0, 0)), "once more"
    sender.push(b"other")
    assert 0 not in numbers(sender.compose(20, 1.6, 9.0, 0))


def test_a_flight_takes_the_backlog_and_is_left_alone_until_it_lands() -> None:
    sender = filled(300, b"x" * 20)
    flights = sender.launch(0.05, 1.0)
    sender.lands(2.0)
    data = flights[0].data
    assert data == 6
    assert len(flights) == data + flights[0].parity
    assert sender.backlog == 0
    assert sender.compose(1000, 1.5, 0.2, 2) == []
    sender.push(b"new")
    assert numbers(sender.compose(1000, 1.5, 0.2, 2)) == [300]
    sender.got(Got(3, 0, [(10, 291)]), as_of=1.6)
    assert set(numbers(sender.compose(1000, 1.7, 9.0, 2))) == set(range(10)), "reported missing: not left alone"
    assert len(numbers(sender.compose(1000, 2.5, 0.2, 2))) == 10


def test_a_flight_holds_at_most_32_shards() -> None:
    sender = filled(100, b"x" * MAX_CHUNK)
    flights = sender.launch(0.05, 1.0)
    assert flights[0].data == 32
    assert sender.fresh
    assert sender.launch(0.05, 1.0)[0].flight != flights[0].flight


def test_a_lie_about_what_came_is_not_believed() -> None:
    sender = filled(2)
    sender.compose(1000, 1.0, 0.2, 2)
    assert not sender.got(Got(3, 3), 2.0)
    assert not sender.got(Got(3, 0, [(0, 60_000)]), 2.0) or not sender.waiting
    sender = filled(2)
    sender.got(Got(3, 2, whole=True), 2.0)
    assert not sender.done, "nothing is whole before its end was said"


def test_a_text_found_wrong_is_over() -> None:
    sender = filled(2)
    sender.finish()
    sender.compose(1150, 0.0, 1.0, 2)
    sender.got(Got(3, 1, wrong=True), 2.0)
    assert sender.done
    assert not sender.whole
    assert sender.unacknowledged == sender.backlog == 0
    assert not sender.fresh


def test_what_was_never_sent_cannot_have_come() -> None:
    sender = filled(2)
    assert not sender.got(Got(3, 2), 2.0)
    assert not sender.got(Got(3, 0, [(1, 1)]), 2.0)
    sender.compose(1150, 0.0, 1.0, 2)
    assert sender.got(Got(3, 2), 2.0)


def test_a_chunk_that_no_budget_holds_goes_alone() -> None:
    """On a slow path the budget is less than a long message; and an end with much metadata leaves it no room."""
    sender = filled(0)
    sender.push(b"x" * 400)
    assert sender.compose(100, 0.0, 1.0, 0) == []
    assert sender.compose(100, 0.0, 1.0, 0, most=450) == [Data(3, 0, [b"x" * 400])]
    sender = filled(0)
    sender.push(b"x" * 1000)
    sender.finish(b"m" * 255)
    assert sender.compose(1150, 0.0, 1.0, 2, most=1166) == [Data(3, 0, [b"x" * 1000])]
    assert sender.end in sender.compose(1150, 0.1, 1.0, 2, most=1166) or not sender.fresh


def test_limits() -> None:
    sender = filled(0)
    with pytest.raises(ValueError, match="1001"):
        sender.push(b"x" * (MAX_CHUNK + 1))
    with pytest.raises(ValueError, match="256"):
        sender.finish(b"x" * 256)
    sender.finish()
    with pytest.raises(ValueError, match="after the end"):
        sender.push(b"x")


def test_what_sixteen_bits_would_mistake_for_another_chunk_waits() -> None:
    sender = filled(SPAN + 3, b"")
    sender.push(b"last")
    sender.finish()
    assert sender.end == End(3, SPAN + 4, 4, crc32(b"last"))
    assert sender.next == SPAN
    assert (sender.backlog, sender.unacknowledged) == (0, 4)
    for i in range(2):
        assert not any(isinstance(block, End) for block in sender.compose(1150, i / 10, 9.0, 2))
    while sender.fresh:
        sender.launch(0.0, 2.0)
    assert not sender.got(Got(3, SPAN + 1), 3.0)
    assert sender.got(Got(3, 2), 3.0)
    assert (sender.next, sender.fresh) == (SPAN + 2, True)
    sender.compose(1150, 4.0, 9.0, 0)
    sender.got(Got(3, SPAN), 5.0)
    assert (sender.next, sender.backlog) == (SPAN + 4, 4)
    sender.compose(1150, 6.0, 9.0, 0)
    assert sender.got(Got(3, SPAN + 4, whole=True), 7.0)
    assert sender.whole
    assert sender.unacknowledged == 0


def test_a_text_found_wrong_frees_what_waits_too() -> None:
    sender = filled(SPAN + 3, b"x")
    sender.got(Got(3, 0, wrong=True), 2.0)
    assert (sender.unacknowledged, sender.backlog, sender.fresh) == (0, 0, False)
