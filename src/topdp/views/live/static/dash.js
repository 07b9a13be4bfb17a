// Common code of the live pages: shows a page, and refreshes it when an event reports a change.
// Each page is an entry of topdp.dashPages: {concerns(kind, facts), show()}. All values are inserted as text.
"use strict";
(() => {
  const topdp = window.topdp;
  const el = topdp.el;
  const find = (selector) => document.querySelector(selector);
  const dash = (topdp.dash = { find, id: document.body.dataset.id, ids: document.body.dataset.ids.split(" ").filter(Boolean) });
  topdp.dashPages = {};

  // Texts

  dash.epsilon = (value) => (value === null || value === undefined ? "infinite" : topdp.bound(value));
  dash.span = (seconds) => {
    const s = Math.max(0, Math.round(seconds)), hours = Math.floor(s / 3600), minutes = Math.floor((s % 3600) / 60);
    if (s < 120) return `${s} s`;
    return hours >= 48 ? `${Math.floor(hours / 24)} days` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
  };
  const ago = (time) => (time ? `${dash.span(Date.now() / 1000 - time)} ago` : "never");
  dash.ago = (time) => el("time", { "data-since": time || "" }, ago(time));
  dash.rounds = (round, all) =>
    round === null || round < 0 ? "none yet" : all === null || all === undefined ? String(round) : `${round} of ${all}`;
  dash.state = (words) => {
    const good = /^(running|done|heard)/.test(words), bad = /cannot|diverged|refused|gone|not answering|lost|reached/.test(words);
    return el("span", { class: "state", "data-state": good && !bad ? "done" : bad ? "bad" : "other" }, words);
  };

  // A text that spans several cells.
  dash.instead = (words, cells) => el("span", { "data-span": cells }, words);

  // Reuse rows with the same key and cells with the same content, so that focus, choices and scrolling are preserved.
  dash.fill = (body, rows) => {
    const existing = new Map([...body.rows].map((row) => [row.dataset.key, row])), times = new Map();
    rows.forEach(([said, cells], place) => {
      // A place may send two agents with one name; each gets its own row.
      const count = times.get(said) || 0, key = count ? JSON.stringify([said, count]) : said;
      times.set(said, count + 1);
      const row = existing.get(key) || el("tr", { "data-key": key });
      existing.delete(key);
      cells.forEach((cell, column) => {
        const inside = cell instanceof Node ? cell : document.createTextNode(cell ?? "");
        const old = row.cells[column] || row.appendChild(el("td", { colspan: inside.dataset?.span }));
        const first = old.firstChild;
        if (first && (first.isEqualNode(inside) || first instanceof HTMLInputElement)) return;
        old.replaceChildren(inside);
      });
      if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
    });
    existing.forEach((row) => row.remove());
  };
  dash.list = (element, lines) => {
    const text = lines.join("\n");
    if (element.dataset.said !== text) element.replaceChildren(...lines.map((line) => el("li", {}, line)));
    element.dataset.said = text;
    element.hidden = !lines.length;
  };
  dash.problem = (words) => {
    const element = find("#problem");
    if (element.textContent !== (words || "")) element.textContent = words || "";
    element.hidden = !words;
  };

  class Refused extends Error {}
  dash.get = async (path) => {
    let answer;
    try {
      answer = await fetch(path);
    } catch {
      throw new Refused(""); // the top of the page reports a lost connection
    }
    const reply = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Refused(reply.problem || `The server answered ${answer.status}.`);
    return reply;
  };

  const begin = () => {
    themes();
    const page = topdp.dashPages[document.body.dataset.page], banner = find("#live");
    if (!page) return;
    let busy = false, again = false;
    const refresh = async () => {
      if (busy) return void (again = true);
      busy = true;
      try {
        do {
          again = false;
          await page.show();
          document.documentElement.setAttribute("data-ready", "");
        } while (again);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (error.message) dash.problem(error.message);
      } finally {
        busy = false;
      }
    };
    dash.refresh = refresh;
    topdp.live((words, lost) => {
      if (banner.textContent !== words) banner.textContent = words;
      banner.classList.toggle("dash-lost", lost);
    }, (kind, facts) => {
      if (kind === "reset" || page.concerns(kind, facts)) refresh();
    });
    setInterval(() => document.querySelectorAll("time[data-since]").forEach((time) => {
      const words = ago(Number(time.dataset.since));
      if (time.textContent !== words) time.textContent = words;
    }), 1000);
    refresh();
  };

  // The chosen theme holds on all pages; a browser without storage uses the system's theme.
  const themes = () => {
    const holder = find(".dash-theme"), choice = topdp.themeSwitch();
    if (!holder) return;
    holder.append(choice);
    const select = choice.querySelector("select");
    try {
      const saved = localStorage.getItem("topdp-theme");
      if (["light", "dark"].includes(saved)) topdp.setTheme((select.value = saved));
      select.addEventListener("change", () => localStorage.setItem("topdp-theme", select.value));
    } catch { /* storage is forbidden */ }
  };
  addEventListener("DOMContentLoaded", begin);
})();
