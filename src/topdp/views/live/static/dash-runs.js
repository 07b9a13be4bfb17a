// Live pages of runs: the list, one run, several side by side. run.js and compare.js draw the runs.
"use strict";
(() => {
  const topdp = window.topdp;
  const { el, dash } = topdp;
  const { find } = dash;
  const MAX_COMPARED = 12; // runs side by side

  const key = (source) => `${source.id} ${source.problem ? "problem" : ""}`; // a row with a problem has fewer cells
  const runCells = (run) => {
    const box = el("input", { type: "checkbox", name: "run", value: run.id, "aria-label": `compare ${run.name}` });
    const facts = run.problem
      ? [dash.instead(run.problem, 5)]
      : [run.method, topdp.name(run.data), String(run.agents), dash.rounds(run.round, run.rounds), run.score || "none"];
    const link = el("a", { href: `/runs/${run.id}` }, topdp.name(run.name));
    return [run.problem ? "" : box, link, dash.state(run.state), ...facts, dash.ago(run.changed)];
  };
  const agentCells = (agent) => {
    const facts = agent.problem
      ? [dash.instead(agent.problem, 3)]
      : [dash.rounds(agent.round, agent.rounds), dash.epsilon(agent.epsilon), agent.budget === null ? "" : topdp.number(agent.budget)];
    const link = el("a", { href: `/agents/${agent.id}` }, topdp.name(agent.agent || agent.name));
    return [link, dash.state(agent.state), ...facts, topdp.name(agent.name), dash.ago(agent.changed)];
  };
  const choose = () => {
    const count = document.querySelectorAll("#runs input:checked").length;
    find("#runs button").disabled = count < 2 || count > MAX_COMPARED;
  };

  topdp.dashPages.home = {
    concerns: () => true,
    async show() {
      const listed = await dash.get("/api/runs");
      const runs = listed.sources.filter((one) => one.kind === "run").sort((a, b) => b.changed - a.changed);
      const agents = listed.sources.filter((one) => one.kind === "agent").sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
      dash.problem(listed.cut ? "There are more runs and agents than this page shows. Name fewer folders." : "");
      find("#empty").hidden = listed.sources.length > 0;
      find("#runs").hidden = !runs.length;
      find("#agents").hidden = !agents.length;
      dash.fill(find("#runs tbody"), runs.map((run) => [key(run), runCells(run)]));
      dash.fill(find("#agents tbody"), agents.map((agent) => [key(agent), agentCells(agent)]));
      choose();
    },
  };
  document.addEventListener("change", (event) => event.target.matches("#runs input") && choose());

  topdp.dashPages.run = {
    concerns: (kind, facts) => facts.id === dash.id,
    async show() {
      const facts = await dash.get(`/api/runs/${dash.id}/facts`);
      dash.problem(facts.problem);
      if (facts.problem) find("#run").replaceChildren(topdp.name(facts.name));
      else topdp.updateRun(find("#run"), facts);
    },
  };

  let drawn = "";
  topdp.dashPages.compare = {
    concerns: (kind, facts) => dash.ids.includes(facts.id),
    async show() {
      const all = await Promise.all(dash.ids.map((id) => dash.get(`/api/runs/${id}/facts`)));
      dash.problem(all.filter((facts) => facts.problem).map((facts) => `${facts.name}: ${facts.problem}`).join(" "));
      if (drawn === (drawn = JSON.stringify(all))) return;
      topdp.compareRuns(find("#run"), all.filter((facts) => !facts.problem));
    },
  };
})();
