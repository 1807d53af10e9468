"use strict";
// Shows the text of a data point when it is selected, and sorts tables. Without this script the page has the same content.

function make(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

// -- figures: the text of a data point (mark), selected by mouse, touch or keyboard ---------------------------------------

const hidden = (node) => node.classList.contains("off");

function answer(svg, tip) {
  const figure = svg.closest("figure");
  const marks = [...svg.querySelectorAll(".mark")];
  if (!marks.length) return;
  let on = null;
  svg.setAttribute("role", "group"); // screen readers skip elements inside the role img
  for (const mark of marks) {
    const title = mark.querySelector("title"); // the script shows this text itself, instead of the browser
    mark.setAttribute("aria-label", title.textContent);
    mark.setAttribute("role", "img");
    mark.setAttribute("tabindex", mark === marks[0] ? "0" : "-1"); // Tab reaches one mark of a figure, arrow keys the others
    title.remove();
  }
  const hide = () => {
    if (!on) return; // no mark of this drawing is selected
    on.classList.remove("on");
    on = null;
    tip.hidden = true;
  };
  const show = (mark) => {
    if (mark === on) return;
    hide();
    on = mark;
    mark.classList.add("on");
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const [at, frame] = [mark.getBoundingClientRect(), figure.getBoundingClientRect()];
    const left = at.left + at.width / 2 - frame.left - tip.offsetWidth / 2;
    const above = at.top - frame.top - tip.offsetHeight - 4;
    tip.style.left = `${Math.max(4, Math.min(left, frame.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${above > 0 ? above : at.bottom - frame.top + 4}px`;
  };
  const point = (event) => {
    const matrix = svg.getScreenCTM();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    let [near, least] = [null, (event.pointerType === "touch" ? 36 : 16) / matrix.a];
    for (const mark of marks) {
      const away = Math.hypot(mark.cx.baseVal.value - at.x, mark.cy.baseVal.value - at.y);
      if (away < least && !hidden(mark)) [near, least] = [mark, away];
    }
    if (near) show(near);
    else hide();
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  document.addEventListener("pointerdown", (event) => svg.contains(event.target) || hide());
  svg.addEventListener("focusin", (event) => event.target.matches(".mark") && show(event.target));
  svg.addEventListener("focusout", hide);
  svg.addEventListener("keydown", (event) => {
    const seen = marks.filter((mark) => !hidden(mark));
    const at = seen.indexOf(event.target);
    const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: seen.length - 1 };
    if (event.key === "Escape") hide();
    else if (at >= 0 && event.key in steps) {
      const next = seen[Math.max(0, Math.min(steps[event.key], seen.length - 1))];
      marks.forEach((mark) => mark.setAttribute("tabindex", mark === next ? "0" : "-1"));
      next.focus();
      event.preventDefault();
    }
  });
}

/** Adds a button for each series if there are several. A series is shown while its button is pressed. */
function legend(figure) {
  const parts = [...figure.querySelectorAll("[data-series]")];
  const names = [...new Set(parts.map((part) => part.dataset.series))];
  if (names.length < 2) return;
  const buttons = make("div", "legend", "");
  buttons.setAttribute("role", "group");
  buttons.setAttribute("aria-label", "Series shown");
  for (const name of names) {
    const of = parts.filter((part) => part.dataset.series === name);
    const [button, swatch] = [make("button", "", name), make("i", "", "")];
    swatch.style.background = of.find((part) => part.dataset.colour)?.dataset.colour ?? "none";
    button.prepend(swatch);
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const drawn = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(drawn));
      of.forEach((part) => part.classList.toggle("off", !drawn));
      for (const svg of figure.querySelectorAll("svg")) {
        const seen = [...svg.querySelectorAll(".mark:not(.off)")];
        if (!seen.some((mark) => mark.getAttribute("tabindex") === "0")) seen[0]?.setAttribute("tabindex", "0");
      }
    });
    buttons.append(button);
  }
  figure.querySelectorAll('svg [id*="-legend_"]').forEach((drawn) => drawn.classList.add("off"));
  figure.querySelector("figcaption").after(buttons);
}

// -- tables: a click or Enter on a header sorts them ------------------------------------------------------------------------

const UNITS = { s: 1, min: 60, h: 3600 };
const NUMBER = /^(?:[<>] )?\[?([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)(?: (s|min|h)(?: (\d+) (s|min))?)?(?: %)?(?:$| \+- | of |[,\]]| \[)/;

/** Returns the number with which a cell begins (a duration in seconds), or null if it begins with no number. */
function number(text) {
  const found = /^\d+(, \d+)+$/.test(text) ? null : NUMBER.exec(text); // a list of seeds is not a number
  if (!found) return null;
  return parseFloat(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1) + (found[3] ?? 0) * (UNITS[found[4]] ?? 0);
}

function sortable(table) {
  const body = table.tBodies[0];
  const order = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  if (order.length < 2) return;
  heads.forEach((head, column) => {
    const button = make("button", "sort", "");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", other === head ? next : "none"));
      const turned = next === "descending" ? -1 : 1;
      const keys = order.map((row) => row.cells[column].innerText.trim());
      const values = keys.map(number);
      const places = order.map((_, place) => place);
      const words = places.some((place) => values[place] === null && !/^(-|not run|)$/.test(keys[place]));
      const missing = (place) => (words ? /^(-|)$/.test(keys[place]) : values[place] === null);
      const compare = (a, b) => (words ? keys[a].localeCompare(keys[b], "en", { numeric: true }) : values[a] - values[b]);
      if (next !== "none") places.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : turned * compare(a, b)) || a - b);
      body.append(...places.map((place) => order[place]));
    });
  });
}

for (const figure of document.querySelectorAll("figure")) {
  const tip = figure.appendChild(make("div", "tip", ""));
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true"); // a screen reader reads the label of the mark instead
  legend(figure);
  figure.querySelectorAll("svg").forEach((svg) => answer(svg, tip));
}
document.querySelectorAll("table").forEach(sortable);
