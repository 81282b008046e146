/** The node's API as this page uses it. Addresses are relative, so that the page also works under a proxy's prefix. */

import { SseParser } from "./sse.js";

const KEY = "outpost.key";

/** What went wrong, in terms the page can act on. */
export class Failure extends Error {
  /** @param {"http" | "stream" | "network" | "cut"} kind */
  constructor(kind, message = "", { status = 0, code = "", retryAfter = NaN } = {}) {
    super(message);
    Object.assign(this, { kind, status, code, retryAfter });
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

async function request(path, options) {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${key.get()}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure("network");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error ?? {};
  return new Failure("http", error.message ?? response.statusText, {
    status: response.status,
    code: error.code,
    retryAfter: Number.parseInt(response.headers.get("Retry-After") ?? "", 10),
  });
}

export async function firstModel(signal) {
  const response = await request("v1/models", { signal });
  const body = await response.json().catch(() => null);
  const id = body?.data?.[0]?.id;
  if (typeof id !== "string") throw new Failure("http", "The node has no model.", { status: 503 });
  return id;
}

/** @returns {Promise<"ready" | "waiting" | "lost">} */
export async function health() {
  try {
    const response = await fetch("health/ready", { cache: "no-store", signal: AbortSignal.timeout(4000) });
    return response.ok ? "ready" : "waiting";
  } catch {
    return "lost";
  }
}

/** @typedef {{text?: string, reason?: string, tokens?: number}} Part a piece of text, why it ended, or what it cost */

/**
 * Streams one answer. Throws a Failure, also when the stream ends without having said so.
 * @returns {AsyncGenerator<Part>}
 */
export async function* answer(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.getReader();
  const parser = new SseParser();
  for (;;) {
    for (const data of parser.push(await next(reader, signal))) {
      if (data === "[DONE]") {
        reader.read().catch(() => {}); // takes the body's end, which frees the connection for the next request
        return;
      }
      yield* parts(data);
    }
  }
}

async function next(reader, signal) {
  let result;
  try {
    result = await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Failure("cut");
  }
  if (result.done) throw new Failure("cut");
  return result.value;
}

function* parts(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new Failure("stream", "It sent something this page cannot read.");
  }
  if (chunk.error) throw new Failure("stream", chunk.error.message, { code: chunk.error.code });
  const choice = chunk.choices?.[0];
  if (choice?.delta?.content) yield { text: choice.delta.content };
  if (choice?.finish_reason) yield { reason: choice.finish_reason };
  if (chunk.usage) yield { tokens: chunk.usage.completion_tokens };
}
