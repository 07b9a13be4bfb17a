// Several runs side by side: topdp.compareRuns(root, [facts, ...]). Curves share a picture only where the runs were
// tested on the same records; runs whose curves coincide are drawn as one.
"use strict";
(() => {
  const topdp = window.topdp;
  const el = topdp.el;
  const SETTINGS = 6;

  const shown = new WeakMap();

  // A later call with newer facts of the same runs preserves pictures, their zoom and the order of tables.
  topdp.compareRuns = (root, all) => {
    const known = all.filter((facts) => facts.privacy);
    const groups = new Map();
    known.forEach((facts) => groups.set(facts.data.key, [...(groups.get(facts.data.key) || []), facts]));
    const kind = JSON.stringify([...groups].map(([key, runs]) => [key, runs.map((run) => [run.name, run.metrics && run.metrics.names])]));
    const before = shown.get(root);
    const parts = before && before.kind === kind ? before.parts : [...groups.values()].map(group);
    const warnings = all.filter((facts) => !facts.privacy).map((facts) => el("p", { class: "warning" }, topdp.name(facts.name), ": ", facts.notes.join(" ")));
    if (groups.size > 1) warnings.unshift(el("p", { class: "warning" }, "These runs use different data. They are compared only with runs on the same data, and curves of different data do not share a picture."));
    if (!before || before.parts !== parts) {
      const place = el("div", {});
      root.classList.add("comparison");
      root.replaceChildren(el("h2", {}, "Compared"), place, ...parts.map((part) => part.element));
      shown.set(root, { kind, parts, place });
    }
    shown.get(root).place.replaceChildren(...warnings);
    [...groups.values()].forEach((runs, at) => parts[at].update(runs));
  };

  const flat = (tree, path = [], into = {}) => {
    Object.entries(tree).forEach(([key, value]) => {
      if (value !== null && typeof value === "object" && !Array.isArray(value)) flat(value, [...path, key], into);
      else into[[...path, key].join(".")] = JSON.stringify(value);
    });
    return into;
  };

  const group = (first) => {
    const table = el("div", {}), notes = el("div", {});
    const names = [...new Set(first.flatMap((run) => (run.metrics ? run.metrics.names : [])))];
    const having = (runs, name) => runs.filter((run) => run.metrics && run.metrics.values[name]);
    const figures = names.map((name) => [name, topdp.curves(overlaid(name, having(first, name)))]);
    return {
      element: el("section", {}, el("h3", {}, first[0].data.name), table, notes, el("div", { class: "pictures" }, figures.map(([, figure]) => figure.element))),
      update: (runs) => {
        tabulate(table, notes, runs);
        figures.forEach(([name, figure]) => figure.update(overlaid(name, having(runs, name))));
      },
    };
  };

  const tabulate = (holder, notes, runs) => {
    const settings = runs.map((run) => flat(run.settings));
    const keys = [...new Set(settings.flatMap(Object.keys))].filter((key) => new Set(settings.map((one) => one[key])).size > 1 && key !== "method.name");
    const metric = runs.map((run) => run.metrics && run.metrics.names[0]).find(Boolean);
    const listed = keys.slice(0, SETTINGS);
    const common = runs[0].answers.filter((one) => one.common);
    const head = [{ text: "run" }, { text: "method" }, ...listed.map((key) => ({ text: key })), ...(metric ? [{ text: metric, numeric: true }, { text: "agents" }] : []),
      { text: "ε", numeric: true }, { text: "against" }, { text: "μ", numeric: true }, ...common.map((one) => ({ text: `ε ${one.label}`, numeric: true })), { text: "rounds", numeric: true }, { text: "seconds", numeric: true }, { text: "state" }];
    const rows = runs.map((run, place) => {
      const { metrics, privacy, guarantee } = run, value = metrics && metrics.values[metric] ? metrics.values[metric] : null;
      const last = (part) => (value ? value[part].at(-1) : null);
      const cell = (number, text) => ({ show: number === null || number === undefined ? text : topdp.upper(number), sort: number ?? null });
      return [{ show: topdp.name(run.name), sort: run.name }, run.method,
        ...listed.map((key) => topdp.name((settings[place][key] ?? "–").replace(/^"|"$/g, ""))),
        ...(metric ? [{ show: value ? topdp.value(last("mean"), topdp.metric(metric, metrics.shares, last("mean"))) : "–", sort: last("mean") },
          value ? `${topdp.metric(metric, metrics.shares, last("min"))} to ${topdp.metric(metric, metrics.shares, last("max"))}` : "–"] : []),
        cell(privacy.epsilon[guarantee.answer], privacy.status[guarantee.answer]), guarantee.label,
        cell(privacy.mu[guarantee.answer], "–"), ...common.map(({ key }) => cell(privacy.epsilon[key], privacy.status[key])),
        { show: `${run.round} of ${run.rounds}`, sort: run.round }, cell(run.seconds, "–"), run.state];
    });
    topdp.fillTable(holder, { caption: `${runs.length} runs on ${runs[0].data.name}; ε at each run's δ, largest over agents.`, head, rows });
    const deltas = new Set(runs.map((run) => String(run.privacy.delta))), against = new Set(runs.map((run) => run.guarantee.answer));
    notes.replaceChildren(
      ...(runs.length > 1 ? [el("p", { class: "words" }, "Each ε is that of one run alone. Several runs on the same private records cost more than any one of them.")] : []),
      ...(keys.length > SETTINGS ? [el("p", { class: "words" }, `They also differ in ${keys.slice(SETTINGS).join(", ")}.`)] : []),
      ...(deltas.size > 1 || against.size > 1 ? [el("p", { class: "warning" }, `Their ε are at different δ or against different observers and are not comparable. Compare the ${common.map((one) => one.label).join(" or ")} at one δ instead.`)] : []));
  };

  const overlaid = (name, runs) => {
    const merged = new Map();
    runs.forEach((run) => {
      const key = JSON.stringify([run.metrics.rounds, run.metrics.values[name]]);
      const label = `${run.name}: ${run.method}, ${topdp.privacyWords(run)}`;
      if (merged.has(key)) merged.get(key).label += `; and ${label} (the same curve)`;
      else merged.set(key, { label, rounds: run.metrics.rounds, ...run.metrics.values[name], look: topdp.look(merged.size) });
    });
    const { shares } = runs[0].metrics, percent = shares.includes(name), series = [...merged.values()];
    const bands = series.length <= 3;
    return {
      title: `${name} on ${runs[0].data.name}`, percent,
      series: series.map((one) => (bands ? one : { ...one, min: null, max: null })),
      note: bands ? "Lines: mean over agents. Bands: from the smallest to the largest agent." : "Lines: mean over agents; the spread of each run is in its own picture.",
      sentence: series.map((one) => `${one.label} ends at ${topdp.metric(name, shares, one.mean.at(-1))}`).join(". ") + ".",
    };
  };
})();
