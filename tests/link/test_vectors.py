"""The vectors are what the code makes, and what it makes of them; and other libraries agree where they can."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from node.errors import LinkError
from node.link import cobs, fec, frame, packet
from node.link.connection import Connection
from node.link.events import Came, Ended
from node.link.fec import Symbol
from tests.link.vectors.make import FILES, FRAMES, HERE, SECRET, plain, written


def stored(name: str) -> Any:
    return json.loads((HERE / name).read_text())


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_the_code_makes(name: str) -> None:
    assert (HERE / name).read_text() == written(name), "python -m tests.link.vectors.make, if the format is to change"


def test_frames_are_read_as_they_are_said() -> None:
    for one, told in zip(stored("frames.json")["frames"], FRAMES, strict=True):
        data = bytes.fromhex(one["frame"])
        assert frame.decode(data) == told
        assert zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "big")


def test_what_is_no_frame_is_refused() -> None:
    for one in stored("frames.json")["refused"]:
        with pytest.raises(LinkError):
            frame.decode(bytes.fromhex(one["bytes"]))


def test_blocks_are_read_as_they_are_said() -> None:
    for one in stored("packets.json")["blocks"]:
        (block,) = packet.decode(bytes.fromhex(one["block"]))
        assert type(block).__name__ == one["type"]
        for name in block.__struct_fields__:
            assert plain(getattr(block, name)) == pytest.approx(one[name]) if name == "delay" else True
            if name != "delay":
                assert plain(getattr(block, name)) == one[name]


def test_datagrams_open_with_keys_derived_elsewhere() -> None:
    for one in stored("packets.json")["datagrams"]:
        label = b"outpost link 2 from client" if one["from_client"] else b"outpost link 2 from node"
        keys = HKDF(SHA256(), 44, one["connection"].to_bytes(4, "big"), label).derive(SECRET)
        nonce = (int.from_bytes(keys[32:], "big") ^ one["number"]).to_bytes(12, "big")
        data, head = bytes.fromhex(one["datagram"]), one["head"]
        assert ChaCha20Poly1305(keys[:32]).decrypt(nonce, data[head:], data[:head]).hex() == one["body"]
        assert packet.read_head(data, one["number"]) == (one["connection"], one["number"], head)


def test_a_client_reads_the_whole_talk() -> None:
    client = Connection(SECRET, 1, client=True, address="node", entropy=bytes, now=0.0)
    client.open(0)
    for one in stored("packets.json")["talk"]:
        if one["from"] == "node":
            client.receive_datagram(bytes.fromhex(one["datagram"]), "node", one["at_ms"] / 1000)
    events = list(iter(client.next_event, None))
    assert b"".join(event.chunk for event in events if isinstance(event, Came)).decode() == "Hello 世界"
    assert Ended(0, True) in events
    assert client.rejected == 0


def test_symbols_repair_each_chunk_of_their_window() -> None:
    for one in stored("codes.json")["symbols"]:
        chunks = [bytes.fromhex(chunk) for chunk in one["chunks"]]
        symbol = Symbol(one["symbol"], one["first"], len(chunks), bytes.fromhex(one["data"]))
        for lost in range(len(chunks)):
            known = {one["first"] + i: chunk for i, chunk in enumerate(chunks) if i != lost}
            assert fec.recover([symbol], known) == {one["first"] + lost: chunks[lost]}


def test_coefficients_follow_the_formula() -> None:
    for i, j, value in stored("codes.json")["coefficients"]:
        assert fec.multiply(value, (128 + i % 128) ^ (j % 128)) == 1


def test_blocks_and_stuffing_come_back() -> None:
    for one in stored("codes.json")["blocks"]:
        data, block = bytes.fromhex(one["data"]), bytearray.fromhex(one["block"])
        for place in range(one["parity"] // 2):
            block[place] ^= 0x5A
        assert fec.correct_block(bytes(block), one["parity"]) == (data, one["parity"] // 2)
    for one in stored("codes.json")["cobs"]:
        assert cobs.decode(bytes.fromhex(one["cobs"])).hex() == one["data"]
        assert b"\x00" not in bytes.fromhex(one["cobs"])
