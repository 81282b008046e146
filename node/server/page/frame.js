/** The node's full frame (node/link/frame.py), as it comes in binary WebSocket messages. */

const MAGIC = 0xc5;
const HEAD = 16;
const HAS_META = 2;
const MAX_META = 1024;
const KINDS = ["DATA", "ACK", "REPAIR", "CTRL"];

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

/** The CRC-32 of bytes, as in zlib. */
export function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) crc = (crc >>> 8) ^ TABLE[(crc ^ byte) & 0xff];
  return ~crc >>> 0;
}

/** The frame that an ArrayBuffer is, whole; throws a RangeError. `stream` is a BigInt, `meta` is [[type, bytes]]. */
export function decode(buffer) {
  const bytes = new Uint8Array(buffer);
  const view = new DataView(buffer);
  const end = bytes.length - 4;
  check(end >= HEAD, "too short");
  check(bytes[0] === MAGIC && !(bytes[1] & 0x30), "not a frame");
  check(crc32(bytes.subarray(0, end)) === view.getUint32(end), "wrong CRC-32");
  const flags = bytes[1] & 0x0f;
  const rest = HEAD + view.getUint16(14);
  check(flags & HAS_META ? rest <= end : rest === end, "wrong length");
  return {
    kind: KINDS[bytes[1] >> 6],
    stream: view.getBigUint64(2),
    seq: view.getUint32(10),
    payload: bytes.subarray(HEAD, rest),
    flags: flags & ~HAS_META,
    meta: flags & HAS_META ? tlvs(bytes.subarray(rest, end)) : [],
  };
}

function tlvs(bytes) {
  const size = (bytes[0] << 8) | bytes[1];
  check(bytes.length > 2 && size === bytes.length - 2 && size <= MAX_META, "wrong length of metadata");
  const found = [];
  for (let at = 2; at < bytes.length; ) {
    const end = at + 2 + bytes[at + 1];
    check(end <= bytes.length, "a TLV ends after its frame");
    found.push([bytes[at], bytes.subarray(at + 2, end)]);
    at = end;
  }
  return found;
}

function check(right, why) {
  if (!right) throw new RangeError(why);
}

/** What a frame says, as the message that JSON would carry (node/server/wsframes.py); throws. */
export function message(buffer) {
  const { kind, stream, seq, payload } = decode(buffer);
  const text = new TextDecoder("utf-8", { fatal: true }).decode(payload);
  if (kind === "DATA") return { type: "token", id: Number(stream), seq, delta: { content: text } };
  check(kind === "CTRL", "an unexpected frame");
  return JSON.parse(text);
}
