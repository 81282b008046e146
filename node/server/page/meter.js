/** How fast an answer came: time to first token, tokens per second, and a trace of when the tokens arrived. */

const BINS = 80;
const HEIGHT = 16;
const SVG = "http://www.w3.org/2000/svg";

export class Meter {
  #bins = new Uint16Array(BINS);
  #binMs = 40;
  #chunks = 0;
  #start = 0;
  #first = 0;
  #last = 0;
  #tokens = 0;
  #running = false;
  #timer = 0;
  #svg;
  #path;
  #wait;
  #rate;
  #count;

  constructor() {
    this.element = document.createElement("div");
    this.element.className = "meter";
    [this.#svg, this.#path] = ["svg", "path"].map((tag) => document.createElementNS(SVG, tag));
    this.#svg.setAttribute("aria-hidden", "true");
    this.#svg.setAttribute("preserveAspectRatio", "none");
    this.#svg.append(this.#path);
    this.#wait = reading("ttft");
    this.#rate = reading("rate");
    this.#count = reading("count");
    this.element.append(this.#svg, this.#wait.element, this.#rate.element, this.#count.element);
  }

  /** Begins a new measurement; times are in milliseconds. */
  start(now) {
    this.#bins.fill(0);
    this.#binMs = 40;
    this.#chunks = this.#first = this.#last = this.#tokens = 0;
    this.#start = now;
    this.#running = true;
    this.element.hidden = false;
    this.element.classList.add("live");
    this.#draw(now);
    // A few figures a second are enough to read, and cheap on a machine that is busy with the model.
    this.#timer = window.setInterval(() => this.#draw(performance.now()), 125);
  }

  /** One piece of text has arrived. */
  tick(now) {
    if (!this.#chunks++) this.#first = now;
    this.#last = now;
    while (now - this.#start >= this.#binMs * BINS) this.#halve();
    this.#bins[Math.max(0, Math.floor((now - this.#start) / this.#binMs))]++;
  }

  /** The node's own count. */
  count(tokens) {
    this.#tokens = tokens;
  }

  /** The answer ended; its figures stay. */
  stop() {
    if (!this.#running) return;
    this.#running = false;
    clearInterval(this.#timer);
    this.element.classList.remove("live");
    this.element.hidden = !this.#chunks;
    this.#draw(this.#last);
  }

  /** The trace keeps its width: when time runs over its right edge, each bin comes to hold twice the time. */
  #halve() {
    const half = BINS / 2;
    for (let i = 0; i < half; i++) this.#bins[i] = this.#bins[2 * i] + this.#bins[2 * i + 1];
    this.#bins.fill(0, half);
    this.#binMs *= 2;
  }

  #draw(now) {
    while (now - this.#start >= this.#binMs * BINS) this.#halve();
    const tokens = this.#tokens || this.#chunks;
    const seconds = (this.#last - this.#first) / 1000;
    this.#wait.show(duration((this.#chunks ? this.#first : now) - this.#start), this.#chunks ? "first token " : "waiting ");
    this.#rate.show(tokens > 1 && seconds > 0.02 ? `${significant((tokens - 1) / seconds)} tokens/s` : "");
    this.#count.show(tokens ? `${tokens} token${tokens === 1 ? "" : "s"}` : "");
    this.#trace(Math.floor((now - this.#start) / this.#binMs) + 1);
  }

  #trace(used) {
    const most = Math.max(1, ...this.#bins);
    let shape = "";
    for (let i = 0; i < Math.min(used, BINS); i++) {
      const height = Math.max(1.5, (this.#bins[i] / most) * HEIGHT).toFixed(1);
      shape += `M${i} ${HEIGHT}v-${height}h.6v${height}z`;
    }
    this.#path.setAttribute("d", shape);
    this.#svg.setAttribute("viewBox", `0 0 ${this.#running ? BINS : Math.max(20, Math.min(used, BINS))} ${HEIGHT}`);
  }
}

function reading(name) {
  const element = document.createElement("span");
  const label = document.createTextNode("");
  const value = document.createElement("b");
  value.className = name;
  element.append(label, value);
  return {
    element,
    show(figure, words = "") {
      if (label.data !== words) label.data = words;
      if (value.textContent !== figure) value.textContent = figure;
      element.hidden = !figure;
    },
  };
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

function significant(value) {
  return value < 100 ? value.toFixed(1) : Math.round(value).toString();
}
