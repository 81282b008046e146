/** The node's API as this page uses it. Addresses are relative, so that the page also works under a proxy's prefix. */

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
  /** For a WebSocket, which takes no headers; in base64url. */
  protocols() {
    const text = btoa(String.fromCharCode(...new TextEncoder().encode(key.get())));
    return text ? [`outpost-key.${text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`] : [];
  },
};

export async function request(path, options) {
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
  const retryAfter = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  return asFailure(body?.error ?? { message: response.statusText }, response.status, retryAfter);
}

export function asFailure({ message = "", code }, status, retryAfter = NaN) {
  return new Failure("http", message, { status, code, retryAfter });
}

/** Stops an answer that would go on without its reader. */
export function cancel(id) {
  if (id) request(`v1/streams/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
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
