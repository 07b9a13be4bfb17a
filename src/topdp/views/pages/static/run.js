// One run on a page: topdp.showRun(root, facts), and topdp.updateRun(root, facts) with newer facts of the same
// run, which preserves zoom, focus and choices. facts: the JSON object of topdp.views.pages.run_facts.run_facts.
"use strict";
(() => {
  const topdp = window.topdp;
  const el = topdp.el;
  const WHOLE = 500;
  const labelOf = (facts, key) => facts.answers.find((one) => one.key === key).label;
  const shown = new WeakMap();

  topdp.showRun = (root, facts) => {
    const parts = sections(facts);
    root.classList.add("run");
    root.replaceChildren(...parts.map((part) => part.element));
    shown.set(root, { parts, kind: kindOf(facts) });
    parts.forEach((part) => part.update(facts));
  };

  topdp.updateRun = (root, facts) => {
    const known = shown.get(root);
    if (!known || known.kind !== kindOf(facts)) return void topdp.showRun(root, facts);
    known.parts.forEach((part) => part.update(facts));
  };

  // The facts that determine the sections of the page; if they change, all sections are created again.
  const kindOf = (facts) => JSON.stringify([facts.name, Boolean(facts.privacy), facts.metrics && facts.metrics.names, Boolean(facts.spending)]);

  const section = (title, make) => {
    const inside = el("div", { class: "inside" });
    let before = "";
    return {
      element: el("section", {}, el("h3", {}, title), inside),
      update: (facts) => {
        const { key, nodes } = make(facts);
        if (key === before) return;
        before = key;
        const focus = inside.contains(document.activeElement) ? document.activeElement.textContent : null;
        inside.replaceChildren(...nodes());
        if (focus) [...inside.querySelectorAll("button, summary, a")].find((one) => one.textContent === focus)?.focus();
      },
    };
  };

  const sections = (facts) => {
    const parts = [heading()];
    if (!facts.privacy) return parts;
    parts.push(figures(), curves(facts), classes(facts), graph(facts), answers(), perAgent(), perLink(), along(facts), settings());
    return parts.filter(Boolean);
  };

  const heading = () => {
    const title = el("h2", {}), state = el("span", { class: "state" }), lead = el("p", { class: "lead" });
    const notes = el("ul", { class: "notes" });
    return {
      element: el("header", {}, el("div", { class: "title" }, title, state), lead, notes),
      update: (facts) => {
        title.replaceChildren(topdp.name(facts.name));
        state.textContent = facts.state;
        state.setAttribute("data-state", facts.state);
        lead.textContent = facts.method === null ? "" : `${facts.method} on ${facts.data.name}, ${facts.graph.agents} agent${facts.graph.agents === 1 ? "" : "s"}, ${facts.data.records.total} ${facts.guarantee.unit}s, ${facts.rounds} rounds.`;
        notes.replaceChildren(...facts.notes.map((note) => el("li", {}, note)));
        notes.hidden = !facts.notes.length;
        notes.classList.toggle("calm", facts.state === "done");
      },
    };
  };

  const figures = () => section("At a glance", (facts) => ({
    key: JSON.stringify([facts.metrics && facts.metrics.values, facts.round, facts.seconds, facts.privacy.seal]),
    nodes: () => {
      const { privacy, guarantee, power, metrics } = facts, answer = guarantee.answer;
      const card = (title, value, words) => el("div", { class: "card" }, el("dt", {}, title), el("dd", {}, el("strong", {}, value), el("span", {}, words)));
      const epsilon = privacy.epsilon[answer], cards = [];
      (metrics ? metrics.names : []).forEach((name) => {
        const last = (part) => metrics.values[name][part].at(-1);
        cards.push(card(name, topdp.value(last("mean"), topdp.metric(name, metrics.shares, last("mean"))),
          `after round ${metrics.rounds.at(-1)}; agents ${topdp.metric(name, metrics.shares, last("min"))} to ${topdp.metric(name, metrics.shares, last("max"))}`));
      });
      cards.push(card(`ε, ${guarantee.label}`, epsilon === null ? privacy.status[answer] : topdp.upper(epsilon),
        `at δ = ${topdp.range(privacy.delta)}, largest over agents, against ${guarantee.words}`));
      if (privacy.mu[answer] !== null && privacy.mu[answer] !== undefined) cards.push(card("μ", topdp.upper(privacy.mu[answer]), "Gaussian differential privacy; needs no δ"));
      if (power[answer]) cards.push(card("An attacker", topdp.value(power[answer]["0.01"], topdp.atMost(power[answer]["0.01"])),
        `of ${facts.guarantee.unit}s recognised, at most, at 1% false alarms; ${topdp.atMost(power[answer]["0.05"])} at 5%. Guessing: 1% and 5%.`));
      cards.push(card("Rounds", `${facts.round}`, `of ${facts.rounds}` + (facts.seconds === null || facts.seconds === undefined ? "" : `; ${topdp.number(facts.seconds)} seconds`)));
      return [el("dl", { class: "cards" }, cards)];
    },
  }));

  // A heading with pictures, whose elements are reused.
  const pictures = (title, make, facts) => {
    const made = make(facts);
    if (!made.length) return null;
    return {
      element: el("section", {}, el("h3", {}, title), el("div", { class: "pictures" }, made.map((one) => one.picture.element))),
      update: (now) => made.forEach((one) => one.picture.update(one.spec(now))),
    };
  };

  const curves = (facts) => pictures("Learning", (first) => (first.metrics ? first.metrics.names : []).map((name) => {
    const spec = (now) => {
      const { metrics } = now, values = metrics.values[name], percent = metrics.shares.includes(name);
      const say = (value) => topdp.metric(name, metrics.shares, value);
      return {
        title: `${name} on ${now.data.name}, ${privacyWords(now)}`, percent,
        series: [{ label: "mean over agents", rounds: metrics.rounds, ...values, look: topdp.look(0) }],
        note: [now.graph.agents > 1 ? "Line: mean over agents. Band: from the smallest to the largest agent." : "", metrics.evaluations > metrics.rounds.length
          ? `Of ${metrics.evaluations} evaluations ${metrics.rounds.length} are drawn, evenly chosen, including the first and the last.` : ""].join(" "),
        sentence: `${name} from ${say(values.mean[0])} after round ${metrics.rounds[0]} to ${say(values.mean.at(-1))} after round ${metrics.rounds.at(-1)}; agents end between ${say(values.min.at(-1))} and ${say(values.max.at(-1))}.`,
      };
    };
    return { picture: topdp.curves(spec(first)), spec };
  }), facts);

  // Metrics with one value per class are shown as tables, not as curves.
  const classes = (facts) => facts.metrics && Object.keys(facts.metrics.several).length ? section("By class", (now) => ({
    key: JSON.stringify(now.metrics.several),
    nodes: () => Object.entries(now.metrics.several).map(([name, values]) => topdp.fillTable(el("div", {}), {
      caption: `${name} after round ${now.metrics.rounds.at(-1)}`,
      head: [{ text: "class", numeric: true }, ...["mean over agents", "least", "largest"].map((text) => ({ text, numeric: true }))],
      rows: values.mean.map((_, place) => [{ show: String(place), sort: place }, ...["mean", "min", "max"].map((part) => {
        const value = values[part] && values[part][place];
        return { show: topdp.value(value, topdp.metric(name, now.metrics.shares, value)), sort: value ?? null };
      })]),
    })),
  })) : null;

  const privacyWords = (facts) => {
    const { guarantee, privacy } = facts, epsilon = privacy.epsilon[guarantee.answer];
    return `ε ${epsilon === null ? privacy.status[guarantee.answer] : topdp.bound(epsilon)} (${guarantee.label})`;
  };
  topdp.privacyWords = privacyWords;

  const graph = (facts) => pictures("Agents and edges", (first) => {
    const made = [{ picture: topdp.network(first), spec: (now) => now }];
    if (first.graph.agents > WHOLE) {
      const scores = (now) => ({ title: `${now.metrics ? now.metrics.names[0] : "metric"} of agents`, percent: now.metrics && now.metrics.shares.includes(now.metrics.names[0]), values: topdp.agentFacts(now).map((one) => one.score) });
      const costs = (now) => ({ title: `ε of agents (${now.guarantee.label})`, values: topdp.agentFacts(now).map((one) => one.epsilon ?? null) });
      if (first.metrics) made.push({ picture: topdp.histogram(scores(first)), spec: scores });
      made.push({ picture: topdp.histogram(costs(first)), spec: costs });
    }
    return made;
  }, facts);

  const answers = () => section("How private", (facts) => ({
    key: facts.privacy.seal || JSON.stringify(facts.privacy.epsilon),
    nodes: () => {
      const { privacy, power, guarantee } = facts;
      const asked = facts.answers.filter((one) => (privacy.status[one.key] ?? "not asked") !== "not asked");
      const reasons = privacy.reasons || {};
      const rows = asked.map(({ key: name, label }) => [
        el("span", {}, label, name === guarantee.answer && guarantee.name ? el("em", {}, " (budget)") : ""),
        { show: privacy.epsilon[name] === null ? privacy.status[name] : topdp.upper(privacy.epsilon[name]), sort: privacy.epsilon[name] },
        { show: topdp.upper(privacy.mu[name]), sort: privacy.mu[name] },
        ...["0.01", "0.05"].map((share) => power[name] ? { show: topdp.value(power[name][share], topdp.atMost(power[name][share])), sort: power[name][share] } : { show: "–", sort: null }),
      ]);
      const holder = el("div", {});
      topdp.fillTable(holder, {
        caption: `Largest over agents, at δ = ${topdp.range(privacy.delta)}, one ${facts.guarantee.unit} ${privacy.adjacency === "add-remove" ? "added or removed" : "replaced"}.`,
        head: [{ text: "answer" }, { text: "ε", numeric: true }, { text: "μ", numeric: true }, { text: "recognised at 1%", numeric: true }, { text: "recognised at 5%", numeric: true }],
        rows, sortable: false,
      });
      const bounded = asked.some(({ key }) => power[key] && !power[key].exact);
      const notes = [el("p", { class: "words" }, "Recognised: an upper bound on how often the best attacker recognises that a " + facts.guarantee.unit + " was present, with false alarms in 1% or 5% of the cases without it." + (bounded ? " For sampled batches the bound follows from ε and δ alone." : ""))];
      notes.push(el("dl", { class: "facts" }, asked.flatMap(({ key, label }) => [el("dt", {}, label),
        el("dd", {}, [privacy.assumptions[key], reasons[key]].filter(Boolean).join(" "))])));
      if (privacy.prepared) notes.push(el("p", { class: "words" }, `ε and μ: ${privacy.prepared}`));
      (privacy.warnings || []).forEach((warning) => notes.push(el("p", { class: "warning" }, `Warning: ${warning}`)));
      return [holder, ...notes];
    },
  }));

  const perAgent = () => {
    const fold = topdp.fold("Every agent", (inside, facts) => {
      const { privacy, guarantee, metrics, graph } = facts, asked = facts.answers.filter(({ key }) => privacy.epsilon_per_agent[key]);
      const names = metrics ? metrics.names.filter((name) => metrics.agents[name]) : [];
      const most = privacy.sees_most[guarantee.answer];
      const cell = (value, text) => ({ show: value === null || value === undefined ? text : topdp.upper(value), sort: value ?? null });
      const head = [{ text: "agent" }, ...names.map((name) => ({ text: name, numeric: true })),
        ...(Array.isArray(privacy.delta) ? [{ text: "δ", numeric: true }] : []), ...asked.map(({ label }) => ({ text: `ε ${label}`, numeric: true })),
        { text: `μ ${guarantee.label}`, numeric: true }, ...(most ? [{ text: "who learns most" }] : [])];
      const rows = graph.names.map((name, agent) => [
        { show: topdp.name(name), sort: name },
        ...names.map((metric) => ({ show: topdp.value(metrics.agents[metric][agent], topdp.metric(metric, metrics.shares, metrics.agents[metric][agent])), sort: metrics.agents[metric][agent] })),
        ...(Array.isArray(privacy.delta) ? [cell(privacy.delta[agent])] : []),
        ...asked.map(({ key }) => cell(privacy.epsilon_per_agent[key][agent], "infinite")),
        cell((privacy.mu_per_agent[guarantee.answer] || [])[agent], "–"),
        ...(most ? [{ show: el("span", {}, (most[agent] || []).flatMap((one, k) => [k ? ", " : "", topdp.name(graph.names[one])])), sort: (most[agent] || []).join() }] : []),
      ]);
      topdp.fillTable(inside, { caption: "Every agent: metrics after the last evaluation, ε and μ.", head, rows });
    }, { print: true });
    return { element: el("section", { class: "fold" }, fold.element), update: fold.update };
  };

  const perLink = () => {
    const fold = topdp.fold("Every edge", (inside, facts) => {
      const { links, names } = facts.graph;
      const rows = links.from.map((from, k) => [
        { show: topdp.name(names[from]), sort: names[from] }, { show: topdp.name(names[links.to[k]]), sort: names[links.to[k]] },
        { show: links.epsilon[k] === null ? "infinite" : topdp.upper(links.epsilon[k]), sort: links.epsilon[k] ?? Infinity },
        { show: links.mu[k] === null ? "infinite" : topdp.upper(links.mu[k]), sort: links.mu[k] ?? Infinity },
      ]);
      topdp.fillTable(inside, { caption: `Upper bounds on what the second agent learns about the first (${facts.guarantee.label}).`,
        head: [{ text: `${facts.guarantee.unit}s of` }, { text: "seen by" }, { text: "ε", numeric: true }, { text: "μ", numeric: true }], rows });
    });
    const element = el("section", { class: "fold" }, fold.element);
    return { element, update: (facts) => { element.hidden = !facts.graph.links.epsilon; fold.update(facts); } };
  };

  const along = (facts) => pictures("Spending curve", (first) => {
    if (!first.spending) return [];
    const spec = (now) => {
      const { spending, guarantee, graph } = now, names = Object.keys(spending.epsilon);
      const budget = typeof guarantee.epsilon === "number" ? guarantee.epsilon : null;
      const last = (name) => topdp.bound(spending.epsilon[name].at(-1));
      // Curves that coincide are drawn as one.
      const close = (a, b) => a.every((value, k) => Math.abs(value - b[k]) <= 1e-6 * Math.abs(value));
      const merged = [];
      names.forEach((name) => {
        const alike = merged.find((one) => close(spending.epsilon[one[0]], spending.epsilon[name]));
        if (alike) alike.push(name);
        else merged.push([name]);
      });
      return {
        title: `ε spent by the agent with the largest ε (${graph.names[spending.agent]}), if its ${facts.guarantee.unit}s enter no later round`, least: 0, yTitle: "ε", xTitle: spending.unit,
        mark: now.round < now.rounds && spending.unit === "round" ? now.round : null,
        series: [...merged.map((alike, place) => ({ label: alike.map((key) => labelOf(now, key)).join(" = "), rounds: spending.rounds, mean: spending.epsilon[alike[0]], look: topdp.look(place) })),
          ...(budget === null ? [] : [{ label: "budget", rounds: [spending.rounds[0], spending.rounds.at(-1)], mean: [budget, budget], look: { colour: "ink", dash: [4, 4] } }])],
        note: "A release between two points counts as the later point." + (now.round < now.rounds && spending.unit === "round" ? " The vertical line is the current round." : ""),
        sentence: `At the end: ${names.map((name) => `${labelOf(now, name)} ${last(name)}`).join(", ")}${budget === null ? "" : `; the budget is ${topdp.number(budget)}`}.`,
      };
    };
    return [{ picture: topdp.curves(spec(first)), spec }];
  }, facts);

  const settings = () => section("Settings", (facts) => ({
    key: JSON.stringify([facts.settings, facts.versions, facts.command]),
    nodes: () => {
      const rows = [];
      const walk = (tree, path) => Object.entries(tree).forEach(([key, value]) => {
        if (value !== null && typeof value === "object" && !Array.isArray(value)) walk(value, [...path, key]);
        else rows.push([[...path, key].join("."), topdp.name(Array.isArray(value) ? (value.length > 12 ? `${value.slice(0, 12).join(", ")}, … (${value.length})` : value.join(", ") || "none") : String(value))]);
      });
      walk(facts.settings, []);
      const fold = topdp.fold("The whole configuration", (inside) => topdp.fillTable(inside, {
        caption: "config.toml, defaults included", head: [{ text: "key" }, { text: "value" }], rows, sortable: false }), { print: true });
      fold.update(facts);
      const item = (title, ...value) => [el("dt", {}, title), el("dd", {}, value)];
      const versions = Object.entries(facts.versions).filter(([, value]) => value).map(([key, value]) => `${key} ${value}`).join(", ");
      return [el("dl", { class: "facts" },
        item("Command that repeats the run", el("code", {}, topdp.name(facts.command))),
        item("Seed", `${facts.seed}`, el("span", { class: "words" }, " Public: the noise does not follow from it.")),
        item("Noise", facts.noise_seed === null ? (facts.federation ? "each agent's own, from the operating system" : "from a secret key") : `noise seed ${facts.noise_seed}: public`),
        item("Versions", versions), item("Model", topdp.name(facts.model)),
        item("Releases", `${facts.releases}`), item("Plan", el("code", { class: "digest" }, facts.privacy.plan))), fold.element];
    },
  }));
})();
