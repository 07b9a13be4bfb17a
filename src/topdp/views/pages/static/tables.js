// Code of all pages: elements, formatted numbers, tables, the choice of the theme. Independent of runs.
// Values are always inserted as text, never as markup.
"use strict";
(() => {
  const topdp = (window.topdp = window.topdp || {});

  // An element with attributes and children; strings become text. on: {event: function}.
  topdp.el = (tag, attributes = {}, ...children) => {
    const svg = tag === "svg" || tag === "rect" || tag === "line" || tag === "text" || tag === "title";
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
      else node.setAttribute(key, value === true ? "" : String(value));
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  };
  const el = topdp.el;

  // Names come from users. Isolate them, so that a right-to-left name does not reorder the text around it.
  topdp.name = (text) => el("bdi", {}, String(text));

  // Four digits, as in tables on the terminal; the full number is in data-value and the title.
  topdp.number = (value) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (!Number.isFinite(value)) return "infinite";
    const rounded = Number(value.toPrecision(4));
    return Math.abs(rounded) < 1e-4 && rounded !== 0 ? rounded.toExponential() : String(rounded);
  };
  // Upper bounds (ε, μ) with four digits, rounded up. The exponent form gives the digits that stand for the number.
  topdp.bound = (value) => {
    if (typeof value !== "number" || !Number.isFinite(value) || value === 0) return topdp.number(value);
    const nearest = Number(value.toPrecision(4)), step = 10 ** (Math.floor(Math.log10(Math.abs(value))) - 3);
    return topdp.number(nearest < value ? Number((nearest + step).toPrecision(4)) : nearest);
  };
  // One number for all agents, or the least and the largest of a list with one per agent.
  topdp.range = (values) => {
    const all = [values].flat().map(Number), ends = [Math.min(...all), Math.max(...all)];
    return [...new Set(ends)].map(topdp.number).join(" to ");
  };
  topdp.percent = (value, digits = 2) =>
    value === null || value === undefined ? "undefined" : `${(100 * value).toFixed(digits)}%`;
  // A number rounded up, for upper bounds.
  topdp.atMost = (value) => `${(Math.ceil(1e4 * value - 1e-7) / 100).toFixed(2)}%`;
  topdp.metric = (name, shares, value) =>
    value === null || value === undefined
      ? "undefined"
      : shares.includes(name) ? topdp.percent(value) : topdp.number(value);

  topdp.value = (value, text) =>
    value === null || value === undefined
      ? text
      : el("span", { "data-value": value, title: String(value) }, text === undefined ? topdp.number(value) : text);

  topdp.upper = (value) => topdp.value(value, topdp.bound(value));

  // A table that can be sorted by its columns. head: [{text, numeric}], rows: cells as text, nodes or
  // {show, sort}. The chosen order is preserved when the same holder is filled again.
  topdp.fillTable = (holder, { caption, head, rows, sortable = rows.length > 2, region = caption }) => {
    const chosen = holder.topdpSort || null;
    const cells = rows.map((row) => row.map((cell) => (isPlain(cell) ? { show: cell, sort: cell } : cell)));
    if (chosen && chosen.column < head.length) {
      const { column, up } = chosen;
      cells.sort((a, b) => (up ? 1 : -1) * compare(a[column].sort, b[column].sort));
    }
    const order = (column) => {
      const up = chosen && chosen.column === column ? !chosen.up : true;
      holder.topdpSort = { column, up };
      topdp.fillTable(holder, { caption, head, rows, sortable, region });
      holder.querySelectorAll("thead th")[column].querySelector("button").focus();
    };
    const titles = head.map((one, column) => {
      const direction = chosen && chosen.column === column ? (chosen.up ? "ascending" : "descending") : null;
      const mark = direction ? (chosen.up ? " ▲" : " ▼") : "";
      const inside = sortable
        ? el("button", { type: "button", class: "sort", on: { click: () => order(column) } }, one.text + mark)
        : one.text;
      return el("th", { scope: "col", class: one.numeric ? "number" : null, "aria-sort": direction }, inside);
    });
    const body = cells.map((row) => el("tr", {}, row.map((cell, column) => {
      const shape = head[column].numeric ? "number" : null;
      return column === 0 ? el("th", { scope: "row", class: shape }, cell.show) : el("td", { class: shape }, cell.show);
    })));
    const table = el("table", {}, el("caption", {}, el("span", {}, caption)), el("thead", {}, el("tr", {}, titles)), el("tbody", {}, body));
    const place = holder.querySelector(":scope > .scroll");
    const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": region }, table);
    if (place) scroll.scrollTop = place.scrollTop;
    holder.replaceChildren(scroll);
    return holder;
  };
  const isPlain = (cell) => cell === null || typeof cell !== "object" || cell instanceof Node;
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
    if (b === null || b === undefined) return -1;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  };

  // A section that can be opened. It is filled when it is first opened, and again when its facts change.
  topdp.fold = (title, fill, { print = false } = {}) => {
    const inside = el("div", {});
    const fold = el("details", { class: print ? "print-open" : null }, el("summary", {}, title), inside);
    let facts, filled;
    const show = () => {
      if (facts !== undefined && filled !== facts) fill(inside, (filled = facts));
    };
    fold.addEventListener("toggle", () => fold.open && show());
    fold.topdpFill = show;
    return { element: fold, update: (now) => { facts = now; if (fold.open) show(); } };
  };

  // The theme: light, dark, or that of the system. Pictures register with topdp.onTheme to be drawn again.
  const listeners = new Set();
  topdp.onTheme = (call) => (listeners.add(call), () => listeners.delete(call));
  const redraw = () => listeners.forEach((call) => call());
  topdp.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  topdp.themeSwitch = () => {
    const choose = el("select", { id: "theme", on: { change: () => topdp.setTheme(choose.value) } },
      el("option", { value: "auto" }, "as the system"), el("option", { value: "light" }, "light"),
      el("option", { value: "dark" }, "dark"));
    return el("label", { class: "theme", for: "theme" }, "Colours ", choose);
  };
  topdp.setTheme = (theme) => {
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // Printed pages use the light theme, and their important sections are open.
  let before = null;
  addEventListener("beforeprint", () => {
    if (before) return;
    const root = document.documentElement;
    before = { theme: root.getAttribute("data-theme"), opened: [] };
    root.setAttribute("data-theme", "light");
    document.querySelectorAll("details.print-open:not([open])").forEach((fold) => {
      if (fold.topdpFill) fold.topdpFill();
      fold.open = true;
      before.opened.push(fold);
    });
    redraw();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    before.opened.forEach((fold) => (fold.open = false));
    topdp.setTheme(before.theme || "auto");
    before = null;
  });
})();
