/** The neighbourhood: who is there, who answers, how the links are, what waits. All of it from v1/status. */

import { Failure, request } from "./api.js";
import { make } from "./turn.js";

const LOOK_MS = 4000;
const MOST_ROWS = 100;
// Sections of the status, in the order of the view; one that is not there is left out.
const PARTS = {
  node: "This node",
  mesh: "Neighbours",
  routes: "Who answers",
  serving: "Answered for neighbours",
  links: "Links",
  outbox: "Outbox",
  later: "Deferred requests",
  hub: "Hub",
  callbacks: "Callbacks",
  fleet: "Nodes of the fleet",
};

const view = document.getElementById("around");
const body = view.querySelector("div");
const opener = document.getElementById("show-around");
let timer = 0;

/** Whether it is open, and takes the keys. */
export const isOpen = () => view.open;

async function look() {
  clearTimeout(timer);
  try {
    const response = await request("v1/status", { signal: AbortSignal.timeout(LOOK_MS) });
    const status = await response.json();
    if (view.open) draw(status);
  } catch (error) {
    if (view.open) body.replaceChildren(make("p", "", why(error)));
  }
  if (view.open) timer = window.setTimeout(look, LOOK_MS);
}

function why(error) {
  if (error instanceof Failure && error.status === 401) return "This node asks for a key. Ask it something first.";
  return "The node does not answer. Trying again.";
}

function draw(status) {
  const parts = Object.entries(PARTS).flatMap(([name, title]) => (status[name] ? [part(title, status[name])] : []));
  body.replaceChildren(...parts);
}

/** Plain members as words and values, groups of groups as tables. */
function part(title, section) {
  const members = Object.entries(section);
  const facts = members.filter(([, value]) => !isTable(value) && !isEmpty(value));
  const list = make("dl", "");
  for (const [key, value] of facts) list.append(make("div", "", make("dt", "", label(key)), make("dd", "", told(key, value))));
  const tables = members.filter(([, value]) => isTable(value)).map(([key, value]) => table(label(key), value));
  return make("section", "", make("h3", "", title), ...(facts.length ? [list] : []), ...tables);
}

function table(name, rows) {
  const shown = Object.entries(rows).slice(0, MOST_ROWS);
  const keys = [...new Set(shown.flatMap(([, row]) => Object.keys(row)))];
  const heads = [name, ...keys.map(label)].map((text) => make("th", "", text));
  for (const head of heads) head.scope = "col";
  const lines = shown.map(([id, row]) => {
    const first = make("th", "", id);
    first.scope = "row";
    return make("tr", "", first, ...keys.map((key) => make("td", "", told(key, row[key]))));
  });
  const element = make("div", "wide", make("table", "", make("thead", "", make("tr", "", ...heads)), make("tbody", "", ...lines)));
  element.tabIndex = 0; // so that it can be scrolled with the keys
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", name);
  return element;
}

const isGroup = (value) => typeof value === "object" && value !== null;
const isEmpty = (value) => isGroup(value) && !Object.keys(value).length;
const isTable = (value) => isGroup(value) && !isEmpty(value) && Object.values(value).every(isGroup);
const label = (key) => key.replace(/_(s|bytes|share)$/, "").replaceAll("_", " ");

function told(key, value) {
  if (value === null || value === undefined) return "–";
  if (isGroup(value)) return Object.entries(value).map(([name, one]) => `${label(name)} ${told(name, one)}`).join(", ") || "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (key.endsWith("_s")) return time(value);
  if (key.endsWith("_bytes")) return value < 1e6 ? `${Math.round(value / 1e3)} kB` : `${(value / 1e6).toFixed(1)} MB`;
  if (key.endsWith("_share")) return `${Math.round(value * 100)} %`;
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(2);
}

function time(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

opener.addEventListener("click", () => {
  body.replaceChildren(make("p", "", "Looking around."));
  view.showModal();
  void look();
});
view.addEventListener("close", () => clearTimeout(timer));
view.addEventListener("click", (event) => {
  if (event.target === view) view.close(); // beside it
});
