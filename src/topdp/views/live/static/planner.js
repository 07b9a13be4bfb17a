// The planner's page: asks when something has changed, shows answers as they come, keeps pinned settings beside.
// Numbers and words are the server's; nothing is computed here. Everything enters as text.
"use strict";
(() => {
  const find = (selector) => document.querySelector(selector);
  const el = (name, attributes = {}, ...inside) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const PAUSE = 300; // milliseconds after the last key before a question is asked
  const MOST = 5; // pinned settings
  const client = crypto.randomUUID ? crypto.randomUUID() : String(Math.random());
  const form = find("#setting");
  const fields = [...form.querySelectorAll(".plan-field")];
  const controls = new Map(fields.map((field) => [field.dataset.key, field.querySelector("select, input")]));
  let also = {}; // settings that a recommendation made, and that have no field
  let pinned = []; // {label, values, lines}
  let current = null; // {values, lines}
  let advice = null;
  let number = 0, timer = null, asking = null;

  const applies = (field) =>
    !field.dataset.only || field.dataset.values.split(" ").includes(controls.get(field.dataset.only).value);

  const values = () => {
    const found = {};
    for (const field of fields) {
      const control = controls.get(field.dataset.key), value = control.value.trim();
      if (applies(field) && value !== control.dataset.usual) found[field.dataset.key] = value;
    }
    return { ...found, ...also };
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

  // Asking

  const changed = (pause) => {
    for (const field of fields) field.hidden = !applies(field);
    const more = Object.entries(also).map(([key, value]) => `${key} = ${value}`);
    find("#also").hidden = !more.length;
    find("#also").replaceChildren(more.length ? `Also: ${more.join(", ")}. ` : "");
    if (more.length) {
      const away = el("button", { type: "button" }, "Leave these away");
      away.addEventListener("click", () => { also = {}; changed(0); find("#pin").focus(); });
      find("#also").append(away);
    }
    find("#answers").classList.add("plan-stale"); // of the setting before, until the new one is answered
    number += 1; // whatever is still on its way is of an older setting
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
      if (!answer.ok) throw new Error(((await answer.json().catch(() => ({}))).problem) || `the server said ${answer.status}`);
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
      problem(`No answer: ${error.message}. It is asked again when something changes.`, {});
      status("");
    } finally {
      if (mine === number) form.removeAttribute("aria-busy");
    }
  };

  const take = (told, question) => {
    if ("problem" in told) {
      problem(told.problem, told.fields || {});
      status("This setting cannot be run; below is what was known before.");
      return;
    }
    if ("toml" in told) {
      problem("", {});
      find("#toml").textContent = told.toml;
      find("#command").textContent = told.command;
    }
    if ("lines" in told) {
      current = { values: question, lines: told.lines };
      find("#answers").classList.remove("plan-stale");
      find("#remarks").replaceChildren(...told.remarks.map((text) => el("li", {}, text)));
      table();
      const left = told.pending.map((name) => name.replaceAll("_", " ")).join(", ");
      status(left ? `not computed yet: ${left}; about ${Math.max(1, Math.round(told.seconds_left))} s` : "");
    }
    if ("progress" in told) status(`not computed yet: looking as observer ${told.progress[0]} of ${told.progress[1]}`);
    if ("recommended" in told) recommend(told.recommended);
    if (told.done) status("all computed");
  };

  // Showing

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
    find("#pin").disabled = pinned.length >= MOST;
  };

  const recommend = (told) => {
    advice = told;
    find("#take").hidden = "refused" in told;
    if ("refused" in told) {
      find("#advice").replaceChildren(el("p", {}, told.refused));
      return;
    }
    const short = (value) => (value === null ? "" : Number(value.toPrecision(3)).toString());
    const head = el("tr", {}, ...["method", "noise in the average", "between agents", "sent a round", "why not"].map(
      (text) => el("th", { scope: "col" }, text)));
    const rows = told.options.map((one) => el("tr", {}, el("th", { scope: "row" }, one.method), el("td", {}, short(one.noise)),
      el("td", {}, short(one.between)), el("td", {}, one.noise === null ? "" : String(one.sent)), el("td", {}, one.noise === null ? one.reason : "")));
    find("#advice").replaceChildren(
      ...told.reasons.map((text) => el("p", {}, text)),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Methods compared" }, el("table", {},
        el("caption", {}, "Noise: variance over that of pooled records, after equal, plain steps. Sent: estimates to each neighbour."),
        el("thead", {}, head), el("tbody", {}, ...rows))),
      el("pre", { class: "plan-copy", tabindex: "0", role: "region", "aria-label": "Recommended command" }, el("code", {}, told.command)));
  };

  // Doing

  form.addEventListener("input", () => changed(PAUSE));
  form.addEventListener("submit", (event) => { event.preventDefault(); changed(0); });
  find("#reset").addEventListener("click", () => fill({}));
  find("#pin").addEventListener("click", () => {
    if (!current || pinned.length >= MOST) return;
    const said = Object.entries(current.values).map(([key, value]) => words(key, value)).join(", ");
    pinned.push({ label: said || "as usual", values: current.values, lines: current.lines });
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
        find("#copied").textContent = "copied";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(find(`#${button.dataset.copies}`));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        find("#copied").textContent = "selected: copy it with your keyboard";
      }
    });
  }
  if (window.topdp && window.topdp.themeSwitch) find(".dash-theme").append(window.topdp.themeSwitch());
  changed(0);
})();
