"use strict";
// Shows the recorded rollout trees of a run. Text from a model is added as text nodes only, so that it never becomes HTML.
const ROW = 52; // height of a row in px, as in rollouts.css.jinja (.row)
const [BETWEEN, LEVEL, RADIUS] = [20, 64, 5]; // px: distance of leaves, distance of turns, radius of a node
const $ = (id) => document.getElementById(id);

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function draw(tag, attributes, parent) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (parent) parent.append(node);
  return node;
}

async function unpack() {
  const bytes = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const number = (value, digits = 2) => (value === null || value === undefined ? "-" : value.toFixed(digits));
const signed = (value) => (value > 0 ? "+" : "") + number(value);
const sign = (advantage) => (!advantage || Math.abs(advantage) < 1e-6 ? "flat" : advantage > 0 ? "up" : "down");

/** Adds to a tree the values that the filters and the rows of the list use. */
function known(tree, index) {
  const children = new Map();
  for (const turn of tree.turns) children.set(turn.parent, (children.get(turn.parent) ?? 0) + 1);
  tree.index = index;
  tree.leaves = tree.turns.map((_, i) => i).filter((i) => !children.has(i));
  const totals = tree.rewards.total || [];
  tree.totals = totals.length === tree.leaves.length ? totals : tree.leaves.map(() => null);
  const counted = tree.totals.filter((value) => value !== null);
  tree.mean = counted.length ? counted.reduce((a, b) => a + b, 0) / counted.length : null;
  tree.spread = counted.length ? Math.max(...counted) - Math.min(...counted) : 0;
  tree.branched = [...children].some(([parent, count]) => parent >= 0 && count > 1);
  tree.words = [tree.task, tree.type || "", tree.expert || "", ...tree.turns.map((turn) => turn.text)].join("\n").toLowerCase();
  return tree;
}

let trees = [], shown = [], chosen = null, leaf = 0;

// -- the list ----------------------------------------------------------------------------------------------------------

function filtered() {
  const words = $("words").value.trim().toLowerCase(), kind = $("kind").value, type = $("type").value;
  const [first, last] = [Number($("first").value || 0), Number($("last").value || Infinity)];
  const keep = {
    all: () => true,
    mixed: (tree) => tree.spread > 0,
    alike: (tree) => tree.spread === 0,
    cut: (tree) => tree.stopped,
    branched: (tree) => tree.branched,
  }[kind];
  const order = {
    iteration: (a, b) => a.index - b.index,
    mean: (a, b) => (b.mean ?? -Infinity) - (a.mean ?? -Infinity) || a.index - b.index,
    spread: (a, b) => b.spread - a.spread || a.index - b.index,
    samples: (a, b) => b.leaves.length - a.leaves.length || a.index - b.index,
  }[$("order").value];
  return trees
    .filter((tree) => keep(tree) && (!type || tree.type === type) && (!words || tree.words.includes(words)))
    .filter((tree) => tree.iteration === null || (tree.iteration >= first && tree.iteration <= last))
    .sort(order);
}

function list() {
  shown = filtered();
  const samples = shown.reduce((sum, tree) => sum + tree.leaves.length, 0);
  $("count").textContent = `${shown.length.toLocaleString("en")} of ${trees.length.toLocaleString("en")} trees, ${samples.toLocaleString("en")} rollouts`;
  $("rows").style.height = `${shown.length * ROW}px`;
  $("none").hidden = shown.length > 0;
  rows();
}

/** Adds only the visible rows of the list (and a few around them) to the document. */
function rows() {
  const box = $("list"), from = Math.max(0, Math.floor(box.scrollTop / ROW) - 4);
  const visible = shown.slice(from, from + Math.ceil(box.clientHeight / ROW) + 8);
  $("rows").replaceChildren(...visible.map((tree, i) => row(tree, from + i)));
  const at = chosen && visible.includes(chosen) ? `tree-${chosen.index}` : "";
  if (at) box.setAttribute("aria-activedescendant", at);
  else box.removeAttribute("aria-activedescendant");
}

function row(tree, place) {
  const item = make("div", "row");
  Object.assign(item, { id: `tree-${tree.index}`, role: "option" });
  item.setAttribute("aria-selected", tree === chosen);
  item.setAttribute("aria-setsize", shown.length);
  item.setAttribute("aria-posinset", place + 1);
  item.style.top = `${place * ROW}px`;
  item.append(make("span", "task", tree.task));
  const facts = [tree.iteration === null ? "" : `iteration ${tree.iteration}`, `${tree.leaves.length} rollouts`, `mean ${number(tree.mean)}`];
  item.append(make("span", "muted small", facts.filter(Boolean).join(", ") + (tree.stopped ? ", cut" : "")));
  item.onclick = () => choose(tree);
  return item;
}

function step(by) {
  if (!shown.length) return;
  const place = Math.min(shown.length - 1, Math.max(0, shown.indexOf(chosen) + by));
  const box = $("list"), top = place * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  choose(shown[place]);
}

// -- one tree ----------------------------------------------------------------------------------------------------------

function choose(tree) {
  chosen = tree;
  leaf = 0;
  history.replaceState(null, "", `#tree=${tree.index}`);
  rows();
  const parts = [make("h2", "", tree.task)];
  const where = [tree.type, tree.iteration === null ? "" : `iteration ${tree.iteration}`, tree.turn === null ? "" : `from turn ${tree.turn}`];
  const spent = `${tree.leaves.length} rollouts, ${tree.turns.length} turns, mean reward ${number(tree.mean)}`;
  parts.push(make("p", "muted small", [...where, spent, tree.stopped ? "cut by the gate" : ""].filter(Boolean).join(", ")));
  if (tree.goal) parts.splice(1, 0, make("p", "goal", tree.goal));
  parts.push(scores(tree));
  if (tree.looks.length) parts.push(looks(tree.looks));
  if (tree.messages.length) {
    const state = make("details");
    state.append(make("summary", "", `State: ${tree.messages.length} message${tree.messages.length === 1 ? "" : "s"}`), ...tree.messages.map(message));
    parts.push(state);
  }
  const frame = make("div", "drawing");
  frame.id = "drawing";
  const path = make("div");
  path.id = "path";
  path.setAttribute("aria-live", "polite");
  $("tree").replaceChildren(...parts, make("h3", "", "Tree"), frame, path);
  frame.append(picture(tree));
  follow();
}

/** Returns a line with the rewards of the rollouts, in the order of the drawing. */
function scores(tree) {
  const line = make("p", "small", "Rewards: ");
  const order = [...tree.leaves].sort((a, b) => compare(lineage(tree, a), lineage(tree, b)));
  for (const at of order) {
    const total = tree.totals[tree.leaves.indexOf(at)];
    line.append(make("span", total > tree.mean ? "score high" : total < tree.mean ? "score low" : "score", number(total)), " ");
  }
  return line;
}

function message([role, text]) {
  const box = make("div", role === "assistant" ? "message assistant" : "message");
  box.append(make("b", "", role), document.createTextNode(text));
  return box;
}

function looks(all) {
  const names = Object.keys(all[0].values), table = make("table"), frame = make("div", "scroll");
  const line = (tag, cells) => {
    const tr = make("tr");
    tr.append(...cells.map((cell) => make(tag, "", cell)));
    return tr;
  };
  table.append(line("th", ["the gate checked after turn", ...names, "stopped"]));
  table.append(...all.map((look) => line("td", [String(look.step), ...names.map((n) => number(look.values[n], 3)), look.stop ? "yes" : "no"])));
  frame.append(table);
  return frame;
}

/** Draws a tree: depth from left to right, leaves from top to bottom, each inner node at the mean height of its children. */
function picture(tree) {
  const depth = [], y = new Map();
  tree.turns.forEach((turn, i) => (depth[i] = turn.parent < 0 ? 1 : depth[turn.parent] + 1));
  const order = [...tree.leaves].sort((a, b) => compare(lineage(tree, a), lineage(tree, b)));
  order.forEach((at, place) => y.set(at, place * BETWEEN + BETWEEN));
  const children = tree.turns.map(() => []), top = [];
  tree.turns.forEach((turn, i) => (turn.parent < 0 ? top : children[turn.parent]).push(i));
  const amid = (nodes) => nodes.reduce((sum, i) => sum + y.get(i), 0) / nodes.length;
  for (let i = tree.turns.length - 1; i >= 0; i--) if (children[i].length) y.set(i, amid(children[i]));
  const x = (i) => (i < 0 ? 0 : depth[i]) * LEVEL + 14, root = top.length ? amid(top) : BETWEEN;
  const [width, height] = [Math.max(1, ...depth) * LEVEL + 96, order.length * BETWEEN + BETWEEN];
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "listbox", tabindex: 0 });
  svg.setAttribute("aria-label", `Tree of ${order.length} rollouts; arrow keys select one`);
  tree.turns.forEach((turn, i) => {
    const [x0, y0] = [x(turn.parent), turn.parent < 0 ? root : y.get(turn.parent)], middle = (x0 + x(i)) / 2;
    draw("path", { d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y.get(i)} ${x(i)} ${y.get(i)}`, class: `edge ${sign(turn.advantage)}`, "data-turn": i }, svg);
  });
  draw("rect", { x: x(-1) - RADIUS, y: root - RADIUS, width: 2 * RADIUS, height: 2 * RADIUS, class: "root" }, svg);
  tree.turns.forEach((turn, i) => {
    const place = tree.leaves.indexOf(i), group = draw("g", { class: `node ${sign(turn.advantage)}`, "data-turn": i }, svg);
    draw("circle", { cx: x(i), cy: y.get(i), r: RADIUS }, group);
    const title = draw("title", {}, group);
    title.textContent = `${turn.text}\nadvantage ${signed(turn.advantage)}`;
    if (place < 0) return;
    group.setAttribute("role", "option");
    const label = draw("text", { x: x(i) + 12, y: y.get(i) + 4 }, group);
    label.textContent = number(tree.totals[place]);
    group.onclick = () => pick(order.indexOf(i));
  });
  svg.onkeydown = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    pick(Math.min(order.length - 1, Math.max(0, leaf + by)));
  };
  tree.order = order;
  return svg;
}

function lineage(tree, at) {
  const path = [];
  for (let i = at; i >= 0; i = tree.turns[i].parent) path.unshift(i);
  return path;
}

function compare(a, b) {
  for (let k = 0; k < Math.min(a.length, b.length); k++) if (a[k] !== b[k]) return a[k] - b[k];
  return a.length - b.length;
}

function pick(place) {
  leaf = place;
  follow();
}

/** Shows the selected rollout turn by turn, with the demonstrated action beside its first turn. */
function follow() {
  const at = chosen.order[leaf], path = lineage(chosen, at), place = chosen.leaves.indexOf(at), onPath = new Set(path.map(String));
  for (const node of $("drawing").querySelectorAll("[data-turn]")) {
    node.classList.toggle("on", onPath.has(node.dataset.turn));
    if (node.getAttribute("role") === "option") node.setAttribute("aria-selected", node.dataset.turn === String(at));
  }
  const named = Object.entries(chosen.rewards).map(([name, values]) => `${name} ${number(values[place])}`).join(", ");
  const parts = [make("h3", "", `Rollout ${leaf + 1} of ${chosen.order.length}: ${named || "no reward"}`)];
  if (chosen.expert) {
    const box = make("div", "step expert");
    box.append(make("div", "facts", "demonstrated here"), make("div", "action", chosen.expert));
    parts.push(box);
  }
  const steps = make("ol", "steps");
  steps.append(...path.map((i) => turnOf(chosen.turns[i])));
  parts.push(steps);
  $("path").replaceChildren(...parts);
}

function turnOf(turn) {
  const item = make("li", `step ${sign(turn.advantage)}`);
  const facts = [`advantage ${signed(turn.advantage)}`, `log-prob ${number(turn.logprob)}`, `${turn.tokens} tokens`, turn.reward ? `reward ${number(turn.reward)}` : "", turn.done ? "episode ends" : ""];
  item.append(make("div", "action", turn.text || "(empty)"), make("div", "facts", facts.filter(Boolean).join(", ")));
  if (turn.observation) item.append(make("div", "answer", turn.observation));
  return item;
}

// -- the page ----------------------------------------------------------------------------------------------------------

async function begin() {
  trees = (await unpack()).map(known);
  const types = [...new Set(trees.map((tree) => tree.type).filter(Boolean))].sort();
  $("type").append(...types.map((type) => new Option(type, type)));
  $("type").closest("label").hidden = types.length < 2;
  for (const id of ["words", "kind", "type", "first", "last", "order"]) $(id).oninput = () => ($("list").scrollTo(0, 0), list());
  $("list").onscroll = () => requestAnimationFrame(rows);
  $("list").onkeydown = (event) => {
    const page = Math.max(1, Math.floor($("list").clientHeight / ROW) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -shown.length, End: shown.length }[event.key];
    if (by) event.preventDefault(), step(by);
  };
  addEventListener("resize", rows);
  addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target.tagName !== "INPUT") event.preventDefault(), $("words").focus();
  });
  list();
  const asked = trees[Number(new URLSearchParams(location.hash.slice(1)).get("tree") ?? shown[0]?.index)];
  if (asked) {
    $("list").scrollTop = Math.max(0, shown.indexOf(asked) - 2) * ROW;
    choose(asked);
  }
  document.body.dataset.ready = "yes";
}

begin().catch((error) => {
  $("count").textContent = `These rollouts cannot be shown: ${error.message}. A browser of 2023 or later is needed.`;
});
