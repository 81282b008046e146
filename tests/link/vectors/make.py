"""Writes the test vectors of the link's formats: `python -m tests.link.vectors.make`.

Other implementations check themselves against the JSON files beside this one; so do the tests of this one, and the
page's decoder in a browser. Bytes are hexadecimal, `stream` is decimal because JavaScript's numbers are shorter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from node.link import cobs, fec, frame, packet, pairs
from node.link.connection import Connection
from node.link.crypto import Sealer
from node.link.frame import Flag, Frame, Kind, Tlv, Totals
from node.link.packet import Ack, Challenge, Close, Data, End, Flight, Got, Ping, Repair, Response, Stop

HERE = Path(__file__).parent
SECRET = bytes(range(32))

FRAMES = [
    Frame(Kind.DATA, 1, 0, b"Hello"),
    Frame(Kind.DATA, 2**64 - 1, 2**32 - 1, "Grüße, 世界 🌊".encode()),
    Frame(Kind.DATA, 7, 3, b"again", Flag.ECHO),
    Frame(Kind.DATA, 7, 4),
    Frame(Kind.DATA, 7, 4, b"", Flag.EOS, (Totals(4, 19, 0xDEADBEEF).encode(),)),
    Frame(Kind.ACK, 7, 4, b"", Flag(0), ((Tlv.MISSING, bytes.fromhex("000000050002")), (Tlv.QUALITY, b"\x01"))),
    Frame(Kind.REPAIR, 7, 0, bytes(range(20)), Flag(0), ((Tlv.WINDOW, b"\x04\x01"),)),
    Frame(Kind.CTRL, 0, 0, b'{"type":"pong","t":1}'),
    Frame(Kind.CTRL, 9, 0, b'{"type":"interrupted","id":9,"seq":3}', Flag.INTERRUPT),
    Frame(Kind.DATA, 3, 1, b"unknown types are skipped", Flag(0), ((200, b"later"), (201, b""))),
    Frame(Kind.DATA, 3, 2, bytes(300)),
]

BLOCKS: list[packet.Block] = [
    Data(0, 0, [b"Hello", b"", " 世界".encode()]),
    Data(255, 65535, [bytes(200)]),
    Repair(1, 10, 4, 127, [bytes(7), bytes(range(7))]),
    End(2, 3, 12, 0xCBF43926, b"meta"),
    Stop(3),
    Ack(4_000_000_000, 0.0123, 0b1011),
    Got(4, 17, [(1, 2), (300, 0)], whole=False, wrong=False),
    Got(4, 99, [], whole=True),
    Flight(5, 1, 8, 2, 9, bytes(range(30))),
    Challenge(b"8 bytes!"),
    Response(b"8 bytes!"),
    Ping(),
    Close(1),
    Data(6, 4464, [b"as DATA", bytes(16), b""]),
    Data(6, 5, [b"two", bytes(15)]),
    Data(6, 0x57, [b" one", b" more"], 2, 1, pairs.parity([b"so", b" many"], [b" words"])),
]

WINDOWS = [
    ([b"a"], 0, 0),
    ([b"Hello", b" ", b"world", b""], 0, 0),
    ([b"Hello", b" ", b"world", b""], 0, 1),
    ([b"later", b"chunks"], 126, 127),
    ([bytes((i,)) * (i % 7) for i in range(64)], 1000, 5),
]


def plain(value: Any) -> Any:
    """A value as JSON can say it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def frames() -> dict[str, Any]:
    """Good frames, and some that must be refused."""
    good = [
        {
            "frame": frame.encode(one).hex(),
            "kind": one.kind.name,
            "stream": str(one.stream),
            "seq": one.seq,
            "payload": one.payload.hex(),
            "flags": int(one.flags),
            "meta": plain(one.meta),
        }
        for one in FRAMES
    ]
    return {"frames": good, "refused": [{"bytes": data.hex(), "why": why} for data, why in refused()]}


def refused() -> list[tuple[bytes, str]]:
    """Bytes that are no frame; where not said otherwise their CRC-32 is right."""
    whole = frame.encode(FRAMES[0])
    body = whole[:-4]

    def sealed(data: bytes) -> bytes:
        return data + frame.crc32(data).to_bytes(4, "big")

    with_meta = frame.encode(FRAMES[4])[:-4]
    return [
        (b"", "nothing"),
        (whole[:-1], "cut short"),
        (whole + b"\x00", "a byte too many"),
        (whole[:-1] + bytes((whole[-1] ^ 1,)), "a wrong CRC-32"),
        (sealed(b"\xc4" + body[1:]), "another magic"),
        (sealed(body[:1] + bytes((body[1] | 0x20,)) + body[2:]), "a reserved bit"),
        (sealed(body[:14] + b"\x00\x06" + body[16:]), "a length beyond the end"),
        (sealed(body[:14] + b"\x00\x04" + body[16:]), "a length before the end"),
        (sealed(with_meta[:16] + b"\x00\x0f" + with_meta[18:]), "a length of metadata that does not fit"),
        (sealed(with_meta[:19] + b"\x0d" + with_meta[20:]), "a TLV that ends after its frame"),
        (sealed(bytes((body[0], body[1] | 2)) + body[2:] + b"\x00\x00"), "metadata of no bytes"),
    ]


def packets() -> dict[str, Any]:
    """Blocks, and datagrams that hold them, sealed in both directions."""
    blocks = [
        {
            "block": packet.encode(one).hex(),
            "type": type(one).__name__,
            **{field.name: plain(getattr(one, field.name)) for field in msgspec.structs.fields(one)},
        }
        for one in BLOCKS
    ]
    datagrams = []
    for from_client in (True, False):
        for number, acked in ((0, None), (1, None), (2**32 - 1, None), (0, -1), (0x12345, 0x12300)):
            head = packet.head(0x01020304, number, acked)
            body = b"".join(map(packet.encode, BLOCKS[:3]))
            sealed = Sealer(SECRET, 0x01020304, from_client=from_client).seal(number, head, body)
            told = {"from_client": from_client, "connection": 0x01020304, "number": number, "body": body.hex()}
            datagrams.append({**told, "head": len(head), "datagram": (head + sealed).hex()})
    return {"secret": SECRET.hex(), "blocks": blocks, "datagrams": datagrams, "talk": talk()}


def talk() -> list[dict[str, Any]]:
    """A whole reply without losses, datagram by datagram, 10 ms each way."""
    entropy = b"entropy!"
    client = Connection(SECRET, 1, client=True, address="node", entropy=lambda size: entropy[:size], now=0.0)
    node = Connection(SECRET, 1, client=False, address=None, entropy=lambda size: entropy[:size], now=0.0)
    client.open(0)
    client.send(0, b"?", 0.0)
    client.finish(0, 0.0)
    said: list[dict[str, Any]] = []
    for step in range(12):
        now = step * 0.01
        if step == 2:
            for chunk in (b"Hello", " 世界".encode()):
                node.send(0, chunk, now)
            node.finish(0, now)
        for end, other, name in ((client, node, "client"), (node, client, "node")):
            for data, _ in end.datagrams_to_send(now):
                said.append({"at_ms": step * 10, "from": name, "datagram": data.hex()})
                other.receive_datagram(data, name, now + 0.005)
    return said


def codes() -> dict[str, Any]:
    """Repair symbols over chunks, Reed–Solomon inside blocks, COBS."""
    symbols = [
        {
            "chunks": plain(chunks),
            "first": first,
            "symbol": symbol,
            "data": fec.repair_symbol(chunks, first, symbol).hex(),
        }
        for chunks, first, symbol in WINDOWS
    ]
    coefficients = [[i, j, fec.coefficient(i, j)] for i in (0, 1, 127, 128) for j in (0, 1, 63, 127, 128, 1000)]
    blocks = [
        {
            "data": bytes(range(size)).hex(),
            "parity": parity,
            "block": fec.encode_block(bytes(range(size)), parity).hex(),
        }
        for size, parity in ((1, 6), (64, 8), (64, 16), (223, 32))
    ]
    stuffed = [
        {"data": data.hex(), "cobs": cobs.encode(data)[:-1].hex()}
        for data in (b"", b"\x00", b"\x01\x00\x02", bytes(3), bytes(range(1, 255)), bytes(range(256)))
    ]
    return {"symbols": symbols, "coefficients": coefficients, "blocks": blocks, "cobs": stuffed}


FILES = {"frames.json": frames, "packets.json": packets, "codes.json": codes}


def written(name: str) -> str:
    """What a file should hold."""
    return json.dumps(FILES[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in FILES:
        (HERE / name).write_text(written(name))
