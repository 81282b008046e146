"""The values that handlers hand to each other."""

from node.generation import Request
from node.server.replies import TextReply
from node.server.work import Running, Work
from node.stream.session import Session
from tests.support.sources import HandSource


def test_a_generation_belongs_to_nobody_and_ends_with_its_reader_unless_told_otherwise() -> None:
    request = Request("r", (1,), 1)
    running = Running(Work(request, lambda cached: TextReply("r", 0, "m"), False), Session(request, HandSource()))
    assert (running.owner, running.resumable, running.readers, running.counted) == (b"", False, 0, False)
    assert running.work.origin == b""


def test_every_reader_gets_a_reply_of_its_own() -> None:
    work = Work(Request("r", (1,), 1), lambda cached: TextReply("r", 0, "m"), True)
    assert work.reply(False) is not work.reply(False)
