/** One question and its answer on the page. */

import { Meter } from "./meter.js";
import { render } from "./markdown.js";

const PIECE = 1500; // characters after which a line break starts a new block, so that old text is not laid out again

/** An element with a class and children; strings become text. */
export function make(tag, name, ...children) {
  const element = document.createElement(tag);
  element.className = name;
  element.append(...children);
  return element;
}

/** A title, a text, and what the reader can do about it. */
export function notice(title, text, action = "") {
  return make("div", "notice", make("p", "", make("strong", "", title), " ", text), action);
}

export class Turn {
  /** The answer as the model wrote it. */
  text = "";
  #meter = new Meter();
  #answer = make("div", "answer");
  #notice = make("div", "notices");
  #pending = "";
  #frame = 0;
  #live = document.createTextNode("");
  #reason = "";
  #grown;

  /** @param {() => void} grown called after the turn has become taller */
  constructor(question, grown) {
    this.question = question;
    this.#grown = grown;
    const asked = make("h2", "question", question);
    for (const element of [asked, this.#answer]) element.dir = "auto";
    this.element = make("article", "turn", asked, this.#answer, this.#notice, this.#meter.element);
  }

  /** Forgets an earlier try and waits for the first token. */
  start() {
    this.text = this.#pending = this.#reason = "";
    this.#answer.replaceChildren();
    this.#answer.classList.add("live");
    this.#newPiece();
    this.clearNotice();
    this.#meter.start(performance.now());
    this.#grown();
  }

  /** @param {import("./api.js").Part} part */
  take({ text, reason, tokens }) {
    if (reason) this.#reason = reason;
    if (tokens !== undefined) this.#meter.count(tokens);
    if (!text) return;
    this.#meter.tick(performance.now());
    this.text += text;
    this.#pending += text;
    this.#frame ||= requestAnimationFrame(() => this.#flush());
  }

  /** The stream is over, whole or not: the plain text becomes paragraphs, lists and code. Returns why it ended. */
  close() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#pending = "";
    this.#meter.stop();
    this.#answer.classList.remove("live");
    this.#answer.replaceChildren(render(this.text));
    this.#grown();
    return this.#reason;
  }

  /** What a listener should hear. */
  get spoken() {
    return this.#answer.textContent ?? "";
  }

  /** Says something below the answer, with what can be done about it. */
  notice(title, text, action = "") {
    this.#notice.replaceChildren(notice(title, text, action));
    this.#grown();
  }

  clearNotice() {
    this.#notice.replaceChildren();
  }

  #flush() {
    this.#frame = 0;
    const text = this.#pending;
    this.#pending = "";
    const cut = this.#live.length > PIECE ? text.indexOf("\n") : -1;
    this.#live.appendData(cut < 0 ? text : text.slice(0, cut));
    if (cut >= 0) {
      this.#newPiece();
      this.#live.appendData(text.slice(cut + 1));
    }
    this.#grown();
  }

  #newPiece() {
    this.#live = document.createTextNode("");
    this.#answer.append(make("div", "piece", this.#live));
  }
}
