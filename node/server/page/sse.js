/** Server-sent events from bytes: one instance per response. */

export class SseParser {
  #decoder = new TextDecoder();
  #line = "";
  #data = [];
  #afterCarriageReturn = false;

  /**
   * Takes the next bytes, split anywhere, and returns the data of every event they complete.
   * An event that is still open when the stream ends is dropped, as the specification asks.
   */
  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (!text) return [];
    // A CR ends its line at once, so an event never waits for the next packet; the LF that may follow is skipped.
    if (this.#afterCarriageReturn && text[0] === "\n") text = text.slice(1);
    this.#afterCarriageReturn = text ? text.endsWith("\r") : false;

    const lines = text.split(/\r\n|\r|\n/);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop() ?? "";
    const events = [];
    for (const line of lines) this.#take(line, events);
    return events;
  }

  #take(line, events) {
    if (line === "") {
      if (this.#data.length) events.push(this.#data.join("\n"));
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":"); // a comment has it at 0, and so no field name
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field !== "data") return;
    const value = colon < 0 ? "" : line.slice(colon + 1);
    this.#data.push(value.startsWith(" ") ? value.slice(1) : value);
  }
}
