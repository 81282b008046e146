/** The conversation: what is asked, what runs, what the keys and buttons do. It lives as long as its tab. */

import { Failure, cancel, firstModel, health, key } from "./api.js";
import { isOpen } from "./around.js";
import { answer } from "./link.js";
import { Turn, make, notice } from "./turn.js";
import { explain } from "./words.js";

const POLL_MS = 5000;
const DOUBLE_TAP_MS = 400;
const TALK = "outpost.talk";
const PAGES = { PageUp: -0.8, PageDown: 0.8 };

const [log, welcome, door, form, input, go, latest, fresh, state, modelName, announcer] =
  "log welcome door composer input go latest new state model announcer"
    .split(" ")
    .map((id) => document.getElementById(id));

let turns = [];
let running = null; // {controller, since, ask}
let model = "";

// Asking

function ask(question) {
  const text = question.trim();
  if (!text || running) return;
  turns.at(-1)?.clearNotice(); // its offers no longer apply
  const turn = add(text);
  atEnd = true;
  void run(turn);
}

function add(text) {
  const turn = new Turn(text, follow);
  turns.push(turn);
  log.append(turn.element);
  welcome.hidden = true;
  return turn;
}

/** `begun`: an answer to go on with. */
async function run(turn, begun = null) {
  const controller = new AbortController();
  const { signal } = controller;
  const current = { controller, since: performance.now(), ask: begun };
  running = current;
  showRunning();
  announce("");
  try {
    await (begun ? read(turn, begun, signal) : stream(turn, signal)).catch(async (error) => {
      if (!(error instanceof Failure) || error.status !== 429) throw error;
      turn.close();
      await countDown(turn, error.retryAfter || 5, signal);
      return stream(turn, signal); // by itself once; after that the person decides
    });
    finished(turn);
  } catch (error) {
    turn.close();
    if (signal.aborted) {
      cancel(current.ask?.id); // it would go on without its reader
      turn.notice("Stopped.", turn.text ? "" : "There is no answer yet.", again(turn));
      if (turns.includes(turn)) announce("Stopped.");
    } else if (error instanceof Failure) failed(turn, error);
    else throw error;
    controller.abort(); // whatever else the node may still be sending
  } finally {
    if (running?.controller === controller) {
      running = null;
      showRunning();
    }
  }
}

async function stream(turn, signal) {
  turn.start();
  if (!model) await learnModel(signal);
  const body = { model, messages: history(turn), stream: true, stream_options: { include_usage: true } };
  return read(turn, { body, from: 0 }, signal);
}

async function read(turn, ask, signal) {
  running.ask = ask;
  for await (const part of answer(ask, signal, (lost) => turn.lost(lost))) turn.take(part);
  turn.whole = true;
}

/** Questions that got no answer are left out: many models insist on alternating roles. */
function history(current) {
  const earlier = turns.filter((turn) => turn !== current && turn.text);
  return [
    ...earlier.flatMap((turn) => [
      { role: "user", content: turn.question },
      { role: "assistant", content: turn.text },
    ]),
    { role: "user", content: current.question },
  ];
}

function finished(turn) {
  const reason = turn.close();
  if (!turn.text) turn.notice("The model had nothing to say.", "Try again, or put it another way.", again(turn));
  else if (reason === "length") {
    turn.notice("The answer stops at its length limit.", "", button("Continue", () => ask("Continue.")));
  }
  announce(turn.spoken || "The model had nothing to say.");
}

function failed(turn, failure) {
  const isFirst = !turns.some((other) => other !== turn && other.text);
  const words = explain(failure, { hasKey: key.get() !== "", isFirst, hasText: turn.text !== "" });
  if (failure.code === "model_not_found") model = ""; // another may have taken its place
  if (failure.kind === "network") show("lost");
  const action = {
    again: () => again(turn),
    fresh: () => button("New conversation", () => startOver(turn.question)),
    edit: () => button("Edit the question", () => edit(turn)),
    key: () => keyForm(() => run(turn)),
  }[words.next]();
  turn.notice(words.title, words.text, action);
  announce(`${words.title} ${words.text}`);
  if (action instanceof HTMLFormElement) action.querySelector("input")?.focus();
}

async function countDown(turn, seconds, signal) {
  const left = make("b", "countdown");
  const text = make("span", "", "Your question is kept and will be asked again by itself in ", left, ".");
  turn.notice("The node is busy.", text);
  announce(`The node is busy. Trying again in ${seconds} seconds.`);
  const end = performance.now() + seconds * 1000;
  for (let now = performance.now(); now < end; now = performance.now()) {
    left.textContent = `${Math.ceil((end - now) / 1000)} s`;
    await new Promise((resolve) => setTimeout(resolve, Math.min(100, end - now)));
    signal.throwIfAborted();
  }
}

// What can be done next

function button(label, action) {
  const element = make("button", "action", label);
  element.type = "button";
  element.addEventListener("click", () => {
    if (!running) action();
  });
  return element;
}

function again(turn) {
  return button("Try again", () => {
    atEnd = true;
    void run(turn);
    input.focus({ preventScroll: true }); // the button is gone, and focus must not be lost with it
  });
}

function edit(turn) {
  turns = turns.filter((other) => other !== turn);
  turn.element.remove();
  welcome.hidden = turns.length > 0;
  write(turn.question);
}

function keyForm(then) {
  const field = make("input", "");
  field.type = "password";
  field.autocomplete = "off";
  field.required = true;
  const submit = make("button", "action", "Use this key");
  const element = make("form", "key", make("label", "", "Key", field), submit);
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    key.set(field.value.trim());
    door.replaceChildren();
    input.focus({ preventScroll: true });
    void learnModel().catch(() => {});
    then();
  });
  return element;
}

function startOver(question = "") {
  running?.controller.abort();
  running = null;
  turns = [];
  log.querySelectorAll(".turn").forEach((element) => element.remove());
  welcome.hidden = false;
  log.scrollTop = 0;
  showRunning();
  announce("");
  write(question);
}

function write(text) {
  input.value = text;
  fit();
  input.focus();
}

// A page that is loaded again

function remember() {
  const { id, from } = running?.ask ?? {};
  const told = turns.map(({ question, text, whole }) => ({ question, text, whole }));
  sessionStorage.removeItem(TALK); // forgotten where there is no room
  sessionStorage.setItem(TALK, JSON.stringify({ told, live: id && { id, from } }));
}

function recall() {
  const { told, live } = JSON.parse(sessionStorage.getItem(TALK) ?? '{"told":[]}');
  for (const { question, text, whole } of told) {
    const turn = add(question);
    turn.start(text);
    turn.whole = whole;
    if (live && told.length === turns.length) return void run(turn, live);
    turn.close();
    if (!whole) turn.notice("This answer is not complete.", "", again(turn));
  }
}

// The node's state

async function learnModel(signal) {
  model = await firstModel(signal);
  modelName.textContent = model;
  modelName.title = model;
}

function show(what) {
  if (state.dataset.state === what) return;
  state.dataset.state = what;
  state.textContent = { ready: "Ready", waiting: "Starting", lost: "Not reachable" }[what];
}

let timer = 0;

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  const what = await health();
  if (what === "ready" && !model && !door.hasChildNodes()) await learnModel().catch(askAtTheDoor);
  show(what);
  clearTimeout(timer); // another poll may have ended meanwhile
  timer = window.setTimeout(poll, POLL_MS);
}

/** A node with a key says so before the first question is written. */
function askAtTheDoor(error) {
  if (!(error instanceof Failure) || error.status !== 401 || turns.length) return;
  const words = explain(error, { hasKey: key.get() !== "", isFirst: true, hasText: false });
  door.replaceChildren(notice(words.title, words.text, keyForm(() => {})));
}

// Reading and writing

let atEnd = true;
let lastTop = 0;

/** Keeps the newest text in view, unless the reader has scrolled away from it. */
function follow() {
  if (atEnd && turns.length) log.scrollTop = log.scrollHeight;
  latest.hidden = atEnd;
}

function scrolled() {
  const gap = log.scrollHeight - log.clientHeight - log.scrollTop;
  // Growing text also widens the gap; only the reader moves the view up.
  if (gap < 24) atEnd = true;
  else if (log.scrollTop < lastTop) atEnd = false;
  lastTop = log.scrollTop;
  latest.hidden = atEnd;
}

const growsByItself = CSS.supports("field-sizing", "content");

function fit() {
  if (growsByItself) return;
  input.style.height = "";
  input.style.height = `${input.scrollHeight}px`;
}

function announce(text) {
  announcer.textContent = text;
}

function showRunning() {
  const busy = running !== null;
  form.classList.toggle("busy", busy);
  go.setAttribute("aria-label", busy ? "Stop" : "Send");
}

function send() {
  if (running || !input.value.trim()) return;
  const text = input.value;
  input.value = "";
  fit();
  ask(text);
}

function onKey(event) {
  if (isOpen() || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  const inField = event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLInputElement;
  if (event.key === "Escape" && running) {
    event.preventDefault();
    running.controller.abort();
  } else if (event.key === "/" && !inField) {
    event.preventDefault();
    input.focus();
  } else if (event.key === "Enter" && event.target === input && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key in PAGES && event.target === input) {
    event.preventDefault();
    log.scrollBy(0, PAGES[event.key] * log.clientHeight);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) return send();
  // The second tap of two was meant for Send.
  if (performance.now() - running.since > DOUBLE_TAP_MS) running.controller.abort();
});
fresh.addEventListener("click", () => startOver());
latest.addEventListener("click", () => {
  atEnd = true;
  follow();
});
welcome.addEventListener("click", (event) => {
  if (event.target instanceof HTMLButtonElement) ask(event.target.textContent ?? "");
});
input.addEventListener("input", fit);
log.addEventListener("scroll", scrolled, { passive: true });
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => void poll());
for (const name of ["online", "offline"]) window.addEventListener(name, () => void poll());
window.addEventListener("pagehide", remember);
new ResizeObserver(follow).observe(log);

recall();
void poll();
if (matchMedia("(pointer: fine)").matches) input.focus();
