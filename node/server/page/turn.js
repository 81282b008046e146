/** One question and its answer on the page. */

import { Meter } from "./meter.js";
import { render } from "./markdown.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
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

// Bursts are shown as a flow; the delay (at most 300 ms, none on a clean link) follows the jitter.
let [delay, usual, last] = [0, 50, 0];

function arrived(now) {
  const gap = last && now - last;
  const late = gap - 3 * usual; // silences of up to three usual gaps are none
  last = now;
  usual = Math.max(15, usual + 0.05 * (Math.min(gap, 3 * usual) - usual));
  delay = still.matches ? 0 : Math.min(300, Math.max(late, delay * Math.exp(-gap / 20_000)));
}

export class Turn {
  /** The answer as the model wrote it; whether that is all of it. */
  text = "";
  whole = false;
  #meter = new Meter();
  #answer = make("div", "answer");
  #notice = make("div", "notices");
  #pending = "";
  #frame = 0;
  #shown = 0;
  #live = document.createTextNode("");
  #reason = "";
  #link = make("span", "link");
  #quiet = 0;
  #grown;

  /** @param {() => void} grown called after the turn has become taller */
  constructor(question, grown) {
    this.question = question;
    this.#grown = grown;
    const asked = make("h2", "question", question);
    for (const element of [asked, this.#answer]) element.dir = "auto";
    this.element = make("article", "turn", asked, this.#answer, this.#notice, this.#meter.element);
    this.#meter.element.append(this.#link);
  }

  /** Forgets an earlier try, but for `text` of it, and waits for more. */
  start(text = "") {
    this.whole = false;
    this.#reason = "";
    this.#answer.classList.add("live");
    this.clearNotice();
    this.#meter.start(performance.now());
    last = 0; // the wait for an answer is no jitter
    this.#set(text);
  }

  #set(text) {
    this.#pending = "";
    this.text = text;
    this.#answer.replaceChildren();
    this.#newPiece();
    this.#live.appendData(text);
    this.#grown();
  }

  /** The connection was lost (told after a second), or is back. */
  lost(lost) {
    if (lost) return void (this.#quiet ||= setTimeout(() => (this.#link.textContent = "reconnecting…"), 1000));
    clearTimeout(this.#quiet);
    this.#link.textContent = "";
    this.#quiet = last = 0;
  }

  take({ text, anew, reason, tokens }) {
    if (reason) this.#reason = reason;
    if (tokens !== undefined) this.#meter.count(tokens);
    if (anew) this.#set("");
    if (!text) return;
    const now = performance.now();
    this.#meter.tick(now);
    arrived(now);
    this.text += text;
    if (!this.#pending) this.#shown = now - 16;
    this.#pending += text;
    this.#frame ||= requestAnimationFrame(() => this.#flush());
  }

  /** The stream is over, whole or not: the plain text becomes paragraphs, lists and code. Returns why it ended. */
  close() {
    this.lost(false);
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
    const now = performance.now();
    const share = delay ? (now - this.#shown) / delay : 1;
    let count = Math.ceil(this.#pending.length * Math.min(1, share));
    if (/[\ud800-\udbff]/.test(this.#pending[count - 1])) count++; // never half a character
    const text = this.#pending.slice(0, count);
    this.#pending = this.#pending.slice(count);
    this.#shown = now;
    this.#frame = this.#pending ? requestAnimationFrame(() => this.#flush()) : 0;
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
