// The planner page: requests answers when a setting changes, shows them as they arrive, and compares pinned settings.
// All numbers and texts come from the server. They are inserted as text, never as markup.
"use strict";
(() => {
  const find = (selector) => document.querySelector(selector);
  const el = (name, attributes = {}, ...inside) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };
  const PAUSE = 300; // milliseconds between the last key and a request
  const MAX_PINNED = 5; // settings
  const client = crypto.randomUUID ? crypto.randomUUID() : String(Math.random());
  const form = find("#setting");
  const fields = [...form.querySelectorAll(".plan-field")];
  const controls = new Map(fields.map((field) => [field.dataset.key, field.querySelector("select, input")]));
  let also = {}; // recommended settings without a field in the form
  let pinned = []; // {label, values, lines}
  let current = null; // {values, lines}
  let advice = null;
  let number = 0, timer = null, asking = null;

  const applies = (field) =>
    !field.dataset.only || field.dataset.values.split(" ").includes(controls.get(field.dataset.only).value);

  const values = () => {
    const chosen = {};
    for (const field of fields) {
      const control = controls.get(field.dataset.key), value = control.value.trim();
      if (applies(field) && value !== control.dataset.usual) chosen[field.dataset.key] = value;
    }
    return { ...chosen, ...also };
  };

  const fill = (wanted) => {
    also = {};
    for (const [, control] of controls) control.value = control.dataset.usual;
    for (const [key, value] of Object.entries(wanted)) {
      if (controls.has(key)) controls.get(key).value = value;
      else also[key] = value;
    }
    changed(0);
  };

  const words = (key, value) => {
    const control = controls.get(key);
    if (control && control.tagName === "SELECT") return value;
    return `${control ? control.labels[0].textContent.split(",")[0] : key} ${value}`;
  };

  // Requests

  const changed = (pause) => {
    for (const field of fields) field.hidden = !applies(field);
    const more = Object.entries(also).map(([key, value]) => `${key} = ${value}`);
    find("#also").hidden = !more.length;
    find("#also").replaceChildren(more.length ? `Also: ${more.join(", ")}. ` : "");
    if (more.length) {
      const away = el("button", { type: "button" }, "Remove these");
      away.addEventListener("click", () => { also = {}; changed(0); find("#pin").focus(); });
      find("#also").append(away);
    }
    find("#answers").classList.add("plan-stale"); // they belong to the previous setting until the new answers arrive
    number += 1; // responses with an older number belong to an older setting
    clearTimeout(timer);
    timer = setTimeout(ask, pause);
  };

  const ask = async () => {
    const mine = number, question = values();
    if (asking) asking.abort();
    asking = new AbortController();
    status("computing …");
    form.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch("/api/plan", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ client, values: question }),
        signal: asking.signal,
      });
      if (!answer.ok) throw new Error(((await answer.json().catch(() => ({}))).problem) || `the server responded with status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (mine !== number) return;
        if (done) break;
        const parts = (rest + value).split("\n");
        rest = parts.pop();
        for (const part of parts) take(JSON.parse(part), question);
      }
    } catch (error) {
      if (mine !== number || error.name === "AbortError") return;
      problem(`No answer: ${error.message}. Change a setting to try again.`, {});
      status("");
    } finally {
      if (mine === number) form.removeAttribute("aria-busy");
    }
  };

  const take = (reply, question) => {
    if ("problem" in reply) {
      problem(reply.problem, reply.fields || {});
      status("This setting cannot be run. The answers below belong to the previous setting.");
      return;
    }
    if ("toml" in reply) {
      problem("", {});
      find("#toml").textContent = reply.toml;
      find("#command").textContent = reply.command;
    }
    if ("lines" in reply) {
      current = { values: question, lines: reply.lines };
      find("#answers").classList.remove("plan-stale");
      find("#remarks").replaceChildren(...reply.remarks.map((text) => el("li", {}, text)));
      gain(reply.gains);
      table();
      const left = reply.pending.join(", ");
      status(left ? `not computed yet: ${left}; about ${Math.max(1, Math.round(reply.seconds_left))} s` : "");
    }
    if ("progress" in reply) status(`not computed yet: observer ${reply.progress[0]} of ${reply.progress[1]}`);
    if ("recommended" in reply) recommend(reply.recommended);
    if (reply.done) status("all computed");
  };

  // Display

  const status = (text) => { find("#status").textContent = text; };

  const problem = (text, byField) => {
    const other = Object.entries(byField).filter(([key]) => !controls.has(key)).map(([key, words]) => `${key}: ${words}`);
    const said = [text, ...other].filter(Boolean).join(" ");
    find("#problem").textContent = said;
    find("#problem").hidden = !said;
    for (const [key, control] of controls) {
      find(`#${control.id}-fault`).textContent = byField[key] || "";
      if (byField[key]) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    }
  };

  const table = () => {
    const columns = [{ label: "this setting", lines: current.lines }, ...pinned];
    const head = el("tr", {}, el("td"), ...columns.map((one, place) => {
      const cell = el("th", { scope: "col" }, one.label);
      if (place) {
        const back = el("button", { type: "button", "aria-label": `Take ${one.label}` }, "take");
        const away = el("button", { type: "button", "aria-label": `Remove ${one.label}` }, "remove");
        back.addEventListener("click", () => fill(one.values));
        away.addEventListener("click", () => { pinned = pinned.filter((other) => other !== one); table(); find("#pin").focus(); });
        cell.append(el("span", { class: "plan-buttons" }, back, away));
      }
      return cell;
    }));
    const rows = current.lines.map(([name], line) => el("tr", {}, el("th", { scope: "row" }, name),
      ...columns.map((one) => el("td", {}, (one.lines[line] || [])[1] || ""))));
    find("#answers thead").replaceChildren(head);
    find("#answers tbody").replaceChildren(...rows);
    find("#pin").disabled = pinned.length >= MAX_PINNED;
  };

  const gain = ({ headers, rows, caption }) => {
    find("#gains").hidden = !rows.length;
    find("#gains caption").textContent = caption;
    find("#gains thead").replaceChildren(el("tr", {}, ...headers.map((text) => el("th", { scope: "col" }, text))));
    find("#gains tbody").replaceChildren(...rows.map(([members, ...cells]) => el("tr", {},
      el("th", { scope: "row" }, members), ...cells.map((text) => el("td", {}, text)))));
  };

  const recommend = (reply) => {
    advice = reply;
    find("#take").hidden = "refused" in reply;
    if ("refused" in reply) {
      find("#advice").replaceChildren(el("p", {}, reply.refused));
      return;
    }
    const short = (value) => (value === null ? "" : Number(value.toPrecision(3)).toString());
    const head = el("tr", {}, ...["method", "noise in the average", "between agents", "sent a round", "why not"].map(
      (text) => el("th", { scope: "col" }, text)));
    const rows = reply.options.map((one) => el("tr", {}, el("th", { scope: "row" }, one.method), el("td", {}, short(one.noise)),
      el("td", {}, short(one.between)), el("td", {}, one.noise === null ? "" : String(one.sent)), el("td", {}, one.noise === null ? one.reason : "")));
    find("#advice").replaceChildren(
      ...reply.reasons.map((text) => el("p", {}, text)),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Methods compared" }, el("table", {},
        el("caption", {}, "Noise: variance over that of pooled records, after 20 equal, plain steps (that of a plan follows its own steps). Sent: estimates to each neighbour."),
        el("thead", {}, head), el("tbody", {}, ...rows))),
      el("pre", { class: "plan-copy", tabindex: "0", role: "region", "aria-label": "Recommended command" }, el("code", {}, reply.command)));
  };

  // Actions

  form.addEventListener("input", () => changed(PAUSE));
  form.addEventListener("submit", (event) => { event.preventDefault(); changed(0); });
  find("#reset").addEventListener("click", () => fill({}));
  find("#pin").addEventListener("click", () => {
    if (!current || pinned.length >= MAX_PINNED) return;
    const said = Object.entries(current.values).map(([key, value]) => words(key, value)).join(", ");
    pinned.push({ label: said || "defaults", values: current.values, lines: current.lines });
    table();
  });
  find("#take").addEventListener("click", () => {
    const changes = Object.fromEntries(Object.entries(advice.changes).map(([key, value]) => [key, String(value)]));
    fill({ ...values(), ...changes });
    window.scrollTo(0, 0);
    find("#pin").focus();
  });
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", async () => {
      const text = find(`#${button.dataset.copies}`).textContent;
      try {
        await navigator.clipboard.writeText(text);
        find("#copied").textContent = "Copied.";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(find(`#${button.dataset.copies}`));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        find("#copied").textContent = "Selected. Copy it with your keyboard.";
      }
    });
  }
  if (window.topdp && window.topdp.themeSwitch) find(".dash-theme").append(window.topdp.themeSwitch());
  changed(0);
})();
