/** One answer over as many connections as it takes: a WebSocket, or server-sent events where none can be opened. */

import { Failure, asFailure, key, request } from "./api.js";
import { message } from "./frame.js";
import { SseParser } from "./sse.js";

const GIVE_UP_MS = 120_000;
const PING_MS = 5000;
const SILENT_MS = 22_000; // a node speaks every 10 seconds
const AHEAD = 409; // the node has less than it sent, and could go on with another text

let sockets = true; // until none can be opened where HTTP works
let open = null;
addEventListener("offline", () => open?.end());

/**
 * Streams an answer to its end; a lost connection is a pause. Throws a Failure. `ask` is the `body` of a new one, or its
 * `id`; `from`, the next entry's number, moves along. Yields `text`, `reason`, `tokens`, and `anew`: all text comes again.
 */
export async function* answer(ask, signal, onLink) {
  let tries = 0;
  let since = 0;
  for (;;) {
    const start = ask.from;
    try {
      for await (const part of connect(ask, signal)) {
        if (part.id !== undefined) {
          ask.id = part.id;
          onLink(false);
        } else if (!part.text || !(part.seq < start)) {
          tries = since = 0;
          if (part.seq >= start) ask.from = part.seq + 1;
          yield part;
        }
      }
      return;
    } catch (error) {
      if (signal.aborted || !(error instanceof Failure)) throw error;
      if (error.message.includes("streams.resumable") && !ask.once) {
        ask.once = true; // this node keeps nothing to come back for
        continue;
      }
      if (!ask.id) throw error;
      if (error.status === AHEAD && ask.from) {
        ask.from = 0;
        yield { anew: true };
        continue;
      }
      since ||= performance.now();
      if (!passes(error) || performance.now() - since > GIVE_UP_MS) throw error;
      onLink(true);
      const pause = Math.min(4000, 250 * 2 ** tries++) * (0.5 + Math.random() / 2);
      await new Promise((resolve) => {
        setTimeout(resolve, Math.max(pause, 1000 * error.retryAfter || 0));
        addEventListener("online", resolve, { once: true });
        signal.addEventListener("abort", resolve);
      });
      signal.throwIfAborted();
    }
  }
}

function passes({ kind, status, code }) {
  return ["cut", "network", "unavailable", 429, 502, 503, 504].some((word) => [kind, code, status].includes(word));
}

async function* connect(ask, signal) {
  const inbox = (open = new Inbox(signal));
  try {
    if (sockets && (await inbox.openSocket())) yield* overSocket(ask, inbox);
    else yield* overEvents(ask, inbox, signal);
  } finally {
    inbox.end();
  }
}

async function* overSocket(ask, inbox) {
  inbox.send(
    ask.id
      ? { type: "resume", id: 0, stream: ask.id, from: ask.from }
      : { type: "request", id: 0, route: "chat", body: ask.body, resumable: !ask.once },
  );
  for (let begun = false, type; type !== "finish"; begun ||= type === "accepted") {
    const said = parsed(await inbox.next());
    const { error, seq, delta } = said;
    type = said.type;
    if (type === "error" && !begun) throw asFailure(error, said.status, said.retry_after);
    if (type === "error" || type === "interrupted") throw new Failure("stream", error?.message, error);
    if (type === "rewind") throw asFailure({}, AHEAD);
    if (type === "accepted") yield { id: said.resumable ? said.stream : "" };
    // What was held back to the end has no number of its own.
    if (delta?.content) yield { text: delta.content, seq: type === "token" ? seq : undefined };
    if (type === "finish") yield { reason: said.reason, tokens: said.usage?.completion_tokens };
  }
}

async function* overEvents(ask, inbox, signal) {
  const headers = { "Content-Type": "application/json", "Outpost-Resumable": ask.once ? "0" : "1" };
  const response = await (ask.id
    ? request(`v1/streams/${ask.id}?from=${ask.from}`, { signal })
    : request("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(ask.body), signal }));
  sockets = false;
  yield { id: response.headers.get("Outpost-Stream") ?? "" };
  void inbox.drain(response.body.getReader());
  for (let data; (data = await inbox.next()) !== "[DONE]"; ) {
    const { error, outpost, choices, usage } = parsed(data);
    if (error) throw new Failure("stream", error.message, error);
    if (outpost?.rewind) throw asFailure({}, AHEAD);
    const { delta, finish_reason: reason } = choices?.[0] ?? {};
    if (delta?.content) yield { text: delta.content, seq: outpost?.seq };
    if (reason || usage) yield { reason, tokens: usage?.completion_tokens };
  }
}

function parsed(data) {
  try {
    return data instanceof ArrayBuffer ? message(data) : JSON.parse(data);
  } catch {
    throw new Failure("stream", "It sent something unreadable.");
  }
}

/** One connection's messages. It ends by silence, too. */
class Inbox {
  #messages = [];
  #ended = false;
  #wake = () => {};
  #heard = performance.now();
  #stop = () => {};
  #signal;
  #timer = setInterval(() => {
    if (performance.now() - this.#heard > SILENT_MS) this.end();
    else this.send?.({ type: "ping", t: 0 });
  }, PING_MS);

  constructor(signal) {
    this.#signal = signal;
    signal.addEventListener("abort", this.end);
  }

  end = () => {
    clearInterval(this.#timer);
    this.#ended = true;
    this.send = null;
    this.#stop();
    this.#wake();
  };

  /** Whether it could be opened; a browser does not tell why not. */
  openSocket() {
    const address = new URL("v1/ws", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address, ["outpost.v1.frame", "outpost.v1", ...key.protocols()]);
    socket.binaryType = "arraybuffer";
    this.#stop = () => socket.close();
    socket.onmessage = ({ data }) => this.#take([data]);
    return new Promise((resolve) => {
      setTimeout(() => this.send || socket.close(), PING_MS);
      socket.onopen = () => {
        this.send = (message) => socket.send(JSON.stringify(message));
        resolve(true);
      };
      socket.onclose = () => {
        if (this.send) this.end();
        resolve(false);
      };
    });
  }

  async drain(reader) {
    const parser = new SseParser();
    this.#stop = () => reader.cancel().catch(() => {});
    for (let step; !(step = await reader.read().catch(() => ({ done: true }))).done; ) this.#take(parser.push(step.value));
    this.end();
  }

  async next() {
    while (!this.#messages.length) {
      this.#signal.throwIfAborted();
      if (this.#ended) throw new Failure("cut");
      await new Promise((resolve) => (this.#wake = resolve));
    }
    return this.#messages.shift();
  }

  #take(messages) {
    this.#heard = performance.now();
    this.#messages.push(...messages);
    this.#wake();
  }
}
