// Live pages of agents: one agent for its owner, and a federation as its agents publish it.
"use strict";
(() => {
  const topdp = window.topdp;
  const { el, dash } = topdp;
  const { find } = dash;
  const MAX_DRAWN = 500, MAX_LABELLED = 40; // agents in one picture, without and with their names
  const MAX_LINKS = 2000; // drawn and listed; a malicious place may name many

  const process = (one) => (one.doing ? `${one.process}, ${one.doing}` : one.process);
  const spent = (one) => `${dash.epsilon(one.epsilon)}${one.budget === null ? "" : ` of ${topdp.number(one.budget)}`}`;
  const numbered = (round) => (round === null || round === undefined ? "none yet" : `round ${round}`);

  // One agent

  let curve = null;
  const ledger = (view) => {
    if (view.charges.length < 2) return;
    const rounds = view.charges.map((one) => one.round), ends = [rounds[0], rounds.at(-1)];
    const spec = {
      title: `ε charged to ${view.name} (${view.charged_by})`, least: 0,
      series: [
        { label: "ε charged", rounds, mean: view.charges.map((one) => one.total), look: topdp.look(0) },
        ...(view.budget === null ? [] : [{ label: "budget", rounds: ends, mean: [view.budget, view.budget], look: { colour: "ink", dash: [4, 4] } }]),
      ],
      note: "",
      sentence: `After round ${ends[1]}: ε ${spent(view)}.`,
    };
    if (curve) return curve.update(spec);
    curve = topdp.curves(spec);
    find("#ledger-curve").replaceChildren(curve.element);
    curve.update(spec);
  };
  const linkCells = (peer, link) => [
    topdp.name(peer), dash.state(link.state), dash.ago(link.heard), link.waits ? dash.ago(link.waits) : "no",
    numbered(link.sent), numbered(link.received), link.words || "",
  ];

  topdp.dashPages.agent = {
    concerns: (kind, facts) => facts.id === dash.id,
    async show() {
      const view = await dash.get(`/api/agents/${dash.id}`);
      dash.problem(view.problem);
      if (view.problem) return;
      if (find("#name").textContent !== view.name) find("#name").replaceChildren(topdp.name(view.name));
      dash.list(find("#notes"), view.notes);
      const facts = [
        ["State", process(view)],
        ["Round", dash.rounds(view.round, view.rounds)],
        ["ε spent", `${spent(view)} (${view.charged_by})`],
        ...view.costs.map((one) => [`ε against ${one.against}`, dash.epsilon(one.epsilon)]),
        ["Paused", view.paused ? "yes: no new release until topdp agent resume" : "no"],
      ];
      if (view.scores) {
        const said = Object.entries(view.scores.metrics).map(([name, value]) => `${name} ${topdp.number(value)}`).join(", ");
        facts.push(["On its own records", `${said} (round ${view.scores.round}): for its owner, not published`]);
      }
      facts.push(["Federation", view.federation || "unknown"]);
      const text = JSON.stringify(facts), place = find("#facts");
      if (place.dataset.said !== text) place.replaceChildren(...facts.flatMap(([term, words]) => [el("dt", {}, term), el("dd", {}, words)]));
      place.dataset.said = text;
      dash.fill(find("#links tbody"), Object.entries(view.links).map(([peer, link]) => [peer, linkCells(peer, link)]));
      find("#ledger-words").textContent = view.charges.length ? "" : "Nothing was charged yet.";
      ledger(view);
    },
  };

  // A federation

  const merged = (agents) => {
    const found = new Map();
    agents.forEach((one) => Object.entries(one.links).forEach(([peer, link]) => {
      const [first, second] = [one.name, peer].sort(), key = JSON.stringify([one.federation, first, second]);
      const both = found.get(key) || { key, first, second, says: Object.create(null), states: [] };
      both.says[one.name] = link.received === null ? link.state : `${link.state}, has its round ${link.received}`;
      both.states.push(link.state);
      found.set(key, both);
    }));
    return [...found.values()];
  };
  const worst = (states) => ["refused", "gone", "waited for", "silent", "unknown", "heard"].find((one) => states.includes(one));

  // Draw agents on a circle. Dashes show the state of a link, so that it is not visible by colour alone.
  const picture = (names, links) => {
    const place = new Map(names.map((name, k) => [name, [200 + 150 * Math.sin((2 * Math.PI * k) / names.length), 200 - 150 * Math.cos((2 * Math.PI * k) / names.length)]]));
    const lines = links.filter((one) => place.has(one.first) && place.has(one.second)).map((one) => {
      const [x1, y1] = place.get(one.first), [x2, y2] = place.get(one.second);
      return el("line", { x1, y1, x2, y2, class: "dash-link", "data-state": worst(one.states) }, el("title", {}, `${one.first} – ${one.second}: ${worst(one.states)}`));
    });
    const size = names.length > MAX_LABELLED ? 4 : 9;
    const nodes = names.map((name) => {
      const [x, y] = place.get(name);
      return el("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, rx: size, class: "dash-node" }, el("title", {}, name));
    });
    const labels = names.length > MAX_LABELLED ? [] : names.map((name) => {
      const [x, y] = place.get(name), anchor = x > 210 ? "start" : x < 190 ? "end" : "middle";
      return el("text", { x: x + (x - 200) * 0.1, y: y + (y - 200) * 0.12 + 4, class: "tick", "text-anchor": anchor }, name.length > 14 ? `${name.slice(0, 13)}…` : name);
    });
    const states = links.map((one) => worst(one.states)), count = (state) => states.filter((one) => one === state).length;
    const words = [...new Set(states)].map((state) => `${count(state)} ${state}`).join(", ");
    return el("svg", { viewBox: "-40 20 480 360", role: "img", "aria-label": `${names.length} agents, ${links.length} links: ${words}.` }, lines, nodes, labels);
  };

  let drawn = "", histograms = null;
  const draw = (agents) => {
    const all = merged(agents), many = agents.length > MAX_DRAWN, choice = find("#ego select");
    find("#links").hidden = !all.length;
    find("#ego").hidden = !many;
    if (many && choice.length !== agents.length) choice.replaceChildren(...agents.map((one) => el("option", {}, one.name)));
    const wanted = many ? all.filter((one) => [one.first, one.second].includes(choice.value)) : all, shown = wanted.slice(0, MAX_LINKS);
    find("#links-cut").textContent = shown.length < wanted.length ? `${shown.length} of ${wanted.length} links are shown.` : "";
    const names = [...new Set(many ? shown.flatMap((one) => [one.first, one.second]) : agents.map((one) => one.name))];
    const text = JSON.stringify([names, shown]);
    if (drawn !== (drawn = text)) find("#graph").replaceChildren(picture(names, shown));
    dash.fill(find("#links tbody"), shown.map((one) => [one.key, [
      el("span", {}, topdp.name(one.first), " – ", topdp.name(one.second)),
      one.says[one.first] || "says nothing here", one.says[one.second] || "says nothing here",
    ]]));
    if (!many) return;
    const specs = [{ title: "Rounds of agents", values: agents.map((one) => one.round) }, { title: "ε spent by agents", values: agents.map((one) => one.epsilon) }];
    histograms = histograms || specs.map((spec) => topdp.histogram(spec));
    histograms.forEach((one, k) => one.update(specs[k]));
    if (!find("#histograms").childElementCount) find("#histograms").append(...histograms.map((one) => one.element));
  };
  const agentCells = (one) => [
    topdp.name(one.name), dash.state(one.lost ? `not heard: ${one.lost}; its last report: ${process(one)}` : process(one)),
    dash.rounds(one.round, one.rounds), dash.epsilon(one.epsilon), one.budget === null ? "" : topdp.number(one.budget), one.charged_by,
    `${Object.values(one.links).filter((link) => link.state === "heard").length} of ${Object.keys(one.links).length}`,
    one.age === null || one.place === null ? "now" : `${dash.span(one.age)} ago`,
  ];
  const notes = (agents) => {
    const kinds = new Set(agents.map((one) => one.federation)), names = agents.map((one) => `${one.federation} ${one.name}`);
    const twice = agents.filter((one, k) => names.indexOf(names[k]) !== k).map((one) => one.name);
    return [
      ...(kinds.size > 1 ? [`These agents belong to ${kinds.size} federations, according to their manifests, and share no link.`] : []),
      ...(twice.length ? [`More than one place speaks for ${[...new Set(twice)].join(", ")}: ask their owners which one is right.`] : []),
    ];
  };

  topdp.dashPages.federation = {
    concerns: (kind) => kind !== "run",
    async show() {
      const { agents, places } = await dash.get("/api/federation");
      dash.problem("");
      find("#empty").hidden = agents.length + places.length > 0;
      find("#agents").hidden = !agents.length;
      find("#places").hidden = !places.length;
      dash.list(find("#notes"), notes(agents));
      const rounds = agents.map((one) => one.round), most = Math.max(...agents.map((one) => one.epsilon ?? Infinity));
      const words = agents.length ? `${agents.length} agents, the slowest at round ${Math.min(...rounds)}, the fastest at round ${Math.max(...rounds)}, ε spent up to ${dash.epsilon(Number.isFinite(most) ? most : null)}.` : "";
      if (find("#agents-words").textContent !== words) find("#agents-words").textContent = words;
      dash.fill(find("#agents tbody"), agents.map((one) => [JSON.stringify([one.place, one.federation, one.name]), agentCells(one)]));
      dash.fill(find("#places tbody"), places.map((one) => [one.url, [
        one.url, one.name || "any", one.age === null ? "never" : `${dash.span(one.age)} ago`, dash.state(one.problem ? `not heard: ${one.problem}` : "heard"),
      ]]));
      draw(agents);
    },
  };
  document.addEventListener("change", (event) => event.target.matches("#ego select") && dash.refresh());
})();
