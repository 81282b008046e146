"""What both ends of a scheme agree on."""

from __future__ import annotations

import asyncio

import msgspec

from node.bench.linkworld import Talk
from node.bench.live.script import Log, Script, counted, make, number, text, turns, whole_text


def test_a_script_travels() -> None:
    script = Script("link", 5001, Talk(50.0, 3, 20), 2)
    assert msgspec.json.decode(msgspec.json.encode(script), type=Script) == script


def test_a_log_travels() -> None:
    log = Log()
    log.times[1001].append(1.5)
    log.whole.append(1001)
    back = msgspec.json.decode(msgspec.json.encode(log), type=Log)
    assert (back.times, back.whole) == ({1001: [1.5]}, [1001])


def test_a_readers_first_reply_is_not_counted() -> None:
    script = Script("link", 5001, Talk(50.0, 3, 20), 2)
    assert list(turns(script, 1)) == [1000, 1001, 1002, 1003]
    assert [counted(one) for one in turns(script, 1)] == [False, True, True, True]
    assert number(2, 1) == 2001


def test_texts_differ_and_have_their_size() -> None:
    assert len(text(1, 5, 0)) == 5
    assert whole_text(1, Talk(50.0, 1, 10)) != whole_text(2, Talk(50.0, 1, 10))
    assert len(whole_text(1, Talk(50.0, 1, 10, 7))) == 70


async def test_a_reply_is_made_at_its_pace() -> None:
    log, said = Log(), list[bytes]()
    begun = asyncio.get_running_loop().time()
    await make(7, Talk(100.0, 1, 5), log, said.append)
    assert b"".join(said) == whole_text(7, Talk(100.0, 1, 5))
    assert len(log.times[7]) == 5
    assert log.times[7][-1] - begun >= 0.049
