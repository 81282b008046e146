/**
 * A small part of Markdown, built from DOM nodes: paragraphs, headings, lists, code, bold, emphasis.
 * Whatever the model writes becomes text in a node; nothing is ever parsed as HTML, and links stay text.
 */

const FENCE = /^\s{0,12}(```|~~~)\s*([\w+#.-]*)/;
const HEADING = /^#{1,6}\s+(.+)$/;
const RULE = /^ {0,3}(?:-{3,}|\*{3,}|_{3,})\s*$/;
const ITEM = /^(\s{0,24})([-*+•]|\d{1,9}[.)])\s+(\S.*)$/;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])/g;

/**
 * @param {string} source
 * @returns {DocumentFragment}
 */
export function render(source) {
  const out = document.createDocumentFragment();
  const lines = source.replace(/\r\n?/g, "\n").split("\n");
  let at = 0;
  while (at < lines.length) at = block(lines, at, out);
  return out;
}

/** Renders the block that starts at a line and returns the line after it. */
function block(lines, at, out) {
  const line = lines[at];
  if (!line.trim()) return at + 1;
  if (FENCE.test(line)) return code(lines, at, out);
  if (RULE.test(line)) {
    out.append(document.createElement("hr"));
    return at + 1;
  }
  if (ITEM.test(line)) return list(lines, at, out);
  const heading = HEADING.exec(line);
  if (heading) {
    out.append(inline(document.createElement("h3"), heading[1]));
    return at + 1;
  }
  let end = at + 1;
  while (end < lines.length && !startsBlock(lines[end])) end++;
  out.append(inline(document.createElement("p"), lines.slice(at, end).join("\n")));
  return end;
}

function startsBlock(line) {
  return !line.trim() || [FENCE, RULE, ITEM, HEADING].some((pattern) => pattern.test(line));
}

function code(lines, at, out) {
  const [, mark, language] = FENCE.exec(lines[at]) ?? [];
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end++;
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // long lines scroll, and so must be reachable by keyboard
  if (language) pre.dataset.language = language;
  const inner = document.createElement("code");
  inner.textContent = lines.slice(at + 1, end).join("\n");
  pre.append(inner);
  out.append(pre);
  return end + 1;
}

function list(lines, at, out) {
  /** @type {{indent: number, element: HTMLElement}[]} */
  const open = [];
  /** @type {HTMLElement | null} */
  let item = null;
  for (; at < lines.length; at++) {
    const line = lines[at];
    const match = ITEM.exec(line);
    if (!match || RULE.test(line)) {
      if (!line.trim() && ITEM.test(lines[at + 1] ?? "")) continue; // a loose list goes on
      if (!item || FENCE.test(line) || !/^\s+\S/.test(line)) break;
      inline(item, "\n" + line.trim());
      continue;
    }
    const indent = match[1].length;
    const tag = /\d/.test(match[2]) ? "OL" : "UL";
    while (open.length > 1 && indent < open[open.length - 1].indent) open.pop();
    const top = open[open.length - 1];
    if (!top || !item || (indent > top.indent + 1 && open.length < 5)) {
      open.push({ indent, element: newList(tag, match[2], item ?? out) });
    } else if (top.element.tagName !== tag) {
      open[open.length - 1] = { indent, element: newList(tag, match[2], top.element.parentNode) };
    }
    item = document.createElement("li");
    open[open.length - 1].element.append(inline(item, match[3]));
  }
  return at;
}

function newList(tag, mark, parent) {
  const element = document.createElement(tag);
  if (element instanceof HTMLOListElement) element.start = Number.parseInt(mark, 10);
  parent.append(element);
  return element;
}

function inline(parent, text) {
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    parent.append(text.slice(from, match.index));
    const element = document.createElement(match[1] ? "code" : match[2] ? "strong" : "em");
    element.textContent = match[1] ?? match[2] ?? match[3];
    parent.append(element);
    from = match.index + match[0].length;
  }
  parent.append(text.slice(from));
  return parent;
}
