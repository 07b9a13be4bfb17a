// The graph: agents coloured by accuracy, edges by their ε. With more than 500 agents, it shows only one agent and its
// neighbours. A list of agents and sentences about the chosen one give the same information without the picture.
"use strict";
(() => {
  const topdp = window.topdp;
  const el = topdp.el;
  const WHOLE = 500, LABELLED = 60;
  const STOPS = [[86, 180, 233], [230, 159, 0], [213, 94, 0]]; // sky, orange, red: distinguishable with colour blindness

  // Cytoscape creates a style element unless one exists, which the content security policy forbids; topdp.css has
  // its rule.
  const SHEET = "__________cytoscape_stylesheet";
  if (!document.getElementById(SHEET)) document.head.append(el("meta", { id: SHEET, name: "cytoscape", content: "" }));

  const share = (value, low, high) => (high > low ? (value - low) / (high - low) : 0.5);
  const warm = (part) => {
    const at = Math.min(0.999, Math.max(0, part)) * 2, from = STOPS[Math.floor(at)], to = STOPS[Math.floor(at) + 1];
    return `rgb(${from.map((one, k) => Math.round(one + (to[k] - one) * (at % 1))).join(",")})`;
  };
  const blue = (part) => {
    const [from, to] = [[236, 243, 250], [0, 96, 153]];
    return `rgb(${from.map((one, k) => Math.round(one + (to[k] - one) * Math.min(1, Math.max(0, part)))).join(",")})`;
  };

  topdp.agentFacts = (facts) => {
    const { graph, privacy, guarantee, metrics } = facts;
    const first = metrics && metrics.names[0];
    return graph.names.map((name, agent) => ({
      agent, name,
      score: first && metrics.agents[first] ? metrics.agents[first][agent] : null,
      epsilon: (privacy.epsilon_per_agent[guarantee.answer] || [])[agent],
    }));
  };

  topdp.network = (facts) => {
    const canvas = el("div", { class: "network", role: "img" });
    const told = el("p", { class: "told", "aria-live": "polite" });
    const list = el("datalist", { id: `agents-${Math.random().toString(36).slice(2)}` });
    const input = el("input", { type: "search", list: list.id, autocomplete: "off", size: 14 });
    const button = (text, label, click) => el("button", { type: "button", class: "small", "aria-label": label, on: { click } }, text);
    const clear = button("All", "Clear the choice of an agent", () => choose(null));
    const controls = el("div", { class: "controls" },
      el("label", {}, "Agent ", input), list, clear,
      button("+", "Larger", () => zoom(1.3)), button("−", "Smaller", () => zoom(1 / 1.3)), button("Fit", "Fit the graph into its frame", () => fit()));
    const legend = el("div", { class: "legend" });
    const words = el("p", { class: "words" });
    const figure = el("figure", { class: "graph" }, el("figcaption", {}, "Graph"), controls, canvas, told, legend, words);
    let cy = null, now = null, agents = [], chosen = null, shape = "", around = null;

    const scales = () => {
      const scores = agents.map((one) => one.score).filter((one) => one !== null && one !== undefined);
      const values = (now.graph.links.epsilon || []).filter((one) => one !== null);
      return { scores: [Math.min(...scores), Math.max(...scores)], links: [Math.min(...values), Math.max(...values)], scored: scores.length > 0, valued: values.length > 0 };
    };
    const say = (score) => (now.metrics ? topdp.metric(now.metrics.names[0], now.metrics.shares, score) : "");
    const short = (name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name);

    const elements = () => {
      const { links, positions } = now.graph, size = scales();
      const shown = around === null ? null : new Set([around]);
      const near = [];
      if (shown) links.from.forEach((from, k) => {
        if (from === around) near.push(links.to[k]);
        if (links.to[k] === around) near.push(from);
      });
      near.forEach((one) => shown.add(one));
      const [wide, high] = positions && !shown ? stretch(positions) : [1, 1];
      const ring = shown ? [...shown].filter((one) => one !== around) : [];
      const at = (agent) => {
        if (!shown) return positions ? { x: wide * positions[agent][0], y: -high * positions[agent][1] } : onCircle(agent, agents.length);
        return agent === around ? { x: 0, y: 0 } : onCircle(ring.indexOf(agent), ring.length);
      };
      const nodes = agents.filter((one) => !shown || shown.has(one.agent)).map((one) => ({
        group: "nodes", position: at(one.agent),
        data: { id: `a${one.agent}`, agent: one.agent, label: agents.length <= LABELLED || shown ? short(one.name) : "",
          fill: size.scored && one.score !== null && one.score !== undefined ? blue(share(one.score, ...size.scores)) : "#c9ccd1",
          text: size.scored && one.score !== null && share(one.score, ...size.scores) > 0.55 ? "#ffffff" : "#111111" },
      }));
      const both = new Map();
      links.from.forEach((from, k) => {
        if (shown && !(shown.has(from) && shown.has(links.to[k]) && (from === around || links.to[k] === around))) return;
        const value = links.epsilon ? links.epsilon[k] : undefined;
        const other = both.get(`${links.to[k]}-${from}`);
        if (other && same(other.value, value)) return void (other.both = true);
        both.set(`${from}-${links.to[k]}`, { from, to: links.to[k], value, both: !links.epsilon });
      });
      const edges = [...both.values()].map((one) => {
        const part = one.value === undefined ? null : one.value === null ? 1 : share(one.value, ...size.links);
        return { group: "edges", data: { id: `l${one.from}-${one.to}`, source: `a${one.from}`, target: `a${one.to}`,
          colour: part === null ? topdp.colour("soft") : warm(part), width: part === null ? 1.2 : (canvas.clientWidth < 500 ? 0.5 : 1) * (1.2 + 4 * part), arrow: one.both ? "none" : "triangle" } };
      });
      return [...nodes, ...edges];
    };
    const same = (a, b) => a === b || (a !== null && b !== null && Math.abs(a - b) <= 1e-6 * Math.abs(a));
    // Positions fill the frame without distorting a circle too much.
    const stretch = (positions) => {
      const room = [canvas.clientWidth / 2 - 40, canvas.clientHeight / 2 - 40].map((half, axis) =>
        half / Math.max(1e-3, ...positions.map((place) => Math.abs(place[axis]))));
      const least = Math.min(...room);
      return room.map((one) => Math.min(one, 1.6 * least));
    };
    const onCircle = (place, count) => ({ x: 260 * Math.sin((2 * Math.PI * place) / count), y: -220 * Math.cos((2 * Math.PI * place) / count) });

    const style = () => {
      const full = canvas.clientWidth < 500 ? 24 : 34;
      const size = agents.length <= LABELLED || around !== null ? full : Math.max(8, full * Math.sqrt(LABELLED / agents.length));
      const below = now.graph.names.some((name) => name.length > 4);
      return [
        { selector: "node", style: { "background-color": "data(fill)", label: "data(label)", color: "data(text)", width: size, height: size,
          "font-size": full < 30 ? 11 : 12, "text-valign": below ? "bottom" : "center", ...(below ? { color: topdp.colour("ink"), "text-outline-color": topdp.colour("paper"), "text-outline-width": 2, "text-margin-y": 2 } : {}), "text-halign": "center", "border-width": 1.5, "border-color": topdp.colour("ink") } },
        { selector: "edge", style: { "line-color": "data(colour)", width: "data(width)", "curve-style": agents.length > 150 ? "haystack" : "bezier",
          "target-arrow-shape": "data(arrow)", "target-arrow-color": "data(colour)", "arrow-scale": 0.8, "control-point-step-size": full < 30 ? 12 : 28, opacity: 0.9 } },
        { selector: ".faded", style: { opacity: 0.15 } },
        { selector: ".chosen", style: { "border-width": 4, "border-color": topdp.colour("accent") } },
      ];
    };
    const build = () => {
      if (!canvas.isConnected || canvas.clientWidth === 0 || !now) return;
      if (cy) cy.destroy();
      cy = window.cytoscape({ container: canvas, elements: elements(), style: style(), layout: { name: "preset", fit: true, padding: 24 },
        userZoomingEnabled: false, userPanningEnabled: false, boxSelectionEnabled: false, autoungrabify: true, minZoom: 0.05, maxZoom: 8 });
      cy.on("tap", "node", (event) => choose(event.target.data("agent")));
      cy.on("tap", (event) => event.target === cy && around === null && choose(null));
      frame();
      mark();
    };
    const zoom = (factor) => {
      if (!cy) return;
      cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
      cy.userPanningEnabled(true);
    };
    const fit = () => { if (cy) { frame(); cy.userPanningEnabled(false); } };
    const frame = () => {
      cy.fit(undefined, 24);
      if (cy.zoom() > 1.3) { cy.zoom(1.3); cy.center(); }
    };
    const mark = () => {
      if (!cy) return;
      cy.elements().removeClass("faded chosen");
      if (chosen === null) return;
      const node = cy.$id(`a${chosen}`);
      cy.elements().not(node.closedNeighborhood()).addClass("faded");
      node.addClass("chosen");
    };
    const choose = (agent) => {
      chosen = agent;
      if (agents.length > WHOLE && agent !== null) { around = agent; build(); }
      mark();
      tell();
    };
    const tell = () => {
      if (chosen === null) {
        told.replaceChildren(agents.length > 1 ? "Choose an agent, in the picture or by its name, to see its values." : "There is only one agent, so there are no observers among the agents.");
        return;
      }
      const one = agents[chosen], { links } = now.graph, near = [];
      links.from.forEach((from, k) => {
        if (from === chosen) near.push([links.to[k], links.epsilon ? links.epsilon[k] : undefined]);
        else if (!links.epsilon && links.to[k] === chosen) near.push([from, undefined]);
      });
      near.sort((a, b) => (b[1] ?? Infinity) - (a[1] ?? Infinity));
      const most = (now.privacy.sees_most[now.guarantee.answer] || [])[chosen];
      const parts = ["Agent ", topdp.name(one.name)];
      if (one.score !== null && one.score !== undefined) parts.push(`, ${now.metrics.names[0]} ${say(one.score)}`);
      if (one.epsilon !== undefined) parts.push(`, ε ${one.epsilon === null ? "infinite" : topdp.bound(one.epsilon)} (${now.guarantee.label})`);
      parts.push(`; ${near.length} neighbour${near.length === 1 ? "" : "s"}`);
      if (near.length && near[0][1] !== undefined) {
        parts.push(", which learn of its records: ");
        near.slice(0, 12).forEach(([agent, value], k) => parts.push(k ? ", " : "", topdp.name(now.graph.names[agent]), ` ε ${value === null ? "infinite" : topdp.bound(value)}`));
        if (near.length > 12) parts.push(", …");
      }
      parts.push(".");
      if (most && most.length) parts.push(" Most is learned by ", ...most.flatMap((agent, k) => [k ? " with " : "", topdp.name(now.graph.names[agent])]), ".");
      told.replaceChildren(...parts);
    };
    const legends = () => {
      const size = scales(), rows = [];
      const bar = (paint) => el("svg", { width: 84, height: 12, "aria-hidden": "true" },
        Array.from({ length: 12 }, (_, k) => el("rect", { x: 7 * k, y: 0, width: 7, height: 12, fill: paint(k / 11) })));
      const alike = (pair, say) => say(pair[0]) === say(pair[1]);
      if (size.valued && alike(size.links, topdp.bound)) rows.push(el("p", {}, `Edges: every agent's neighbours learn as much of it, ε ${topdp.bound(size.links[0])}.`));
      else if (size.valued) rows.push(el("p", {}, `Edges: ε of what the arrow's end learns of its start, ${topdp.bound(size.links[0])} `, bar(warm), ` ${topdp.bound(size.links[1])}; wider is more. No arrow: the same both ways.`));
      if (now.graph.links.epsilon && now.graph.links.from.length && !size.valued) rows.push(el("p", {}, "Edges: ε is infinite, because no noise hides what is sent."));
      const without = agents.filter((one) => one.score === null || one.score === undefined).length;
      if (size.scored && without) rows.push(el("p", {}, `Grey: ${without} without a value${now.settings.attack && now.settings.attack.name !== "none" ? "; hostile agents are not evaluated" : ""}.`));
      if (size.scored && alike(size.scores, say)) rows.push(el("p", {}, `Agents: ${now.metrics.names[0]} ${say(size.scores[0])}, all alike.`));
      else if (size.scored) rows.push(el("p", {}, `Agents: ${now.metrics.names[0]} ${say(size.scores[0])} `, bar(blue), ` ${say(size.scores[1])}.`));
      legend.replaceChildren(...rows);
    };
    const update = (next) => {
      now = next;
      agents = topdp.agentFacts(now);
      if (agents.length > WHOLE && around === null) around = worst(agents);
      const { graph } = now, count = graph.links.epsilon ? graph.links.from.length / 2 : graph.links.from.length;
      const sentence = `${graph.agents} agent${graph.agents === 1 ? "" : "s"}, ${count} edge${count === 1 ? "" : "s"}.`;
      canvas.setAttribute("aria-label", `Graph of ${sentence} The table of agents below contains the same values.`);
      figure.querySelector("figcaption").textContent = around === null ? `Graph: ${sentence}` : `Graph: ${sentence} Shown are one agent and its neighbours.`;
      const pooled = now.guarantee.colluders > 1 && now.guarantee.pooled ? `ε of an edge is the largest over all groups of ${now.guarantee.colluders} agents that pool what they see and that its end is in. ` : "";
      words.textContent = now.graph.links.epsilon ? pooled + "An agent that is not a neighbour may learn as much; choose an agent to see which observer learns most about it." : "";
      const fresh = JSON.stringify([graph.names, graph.links.from, graph.links.to]);
      if (list.children.length !== agents.length) list.replaceChildren(...agents.map((one) => el("option", { value: one.name })));
      legends();
      if (!cy || fresh !== shape) { shape = fresh; build(); }
      else elements().forEach((one) => cy.$id(one.data.id).data(one.data));
      if (agents.length > WHOLE && chosen === null) chosen = around;
      tell();
      clear.hidden = agents.length > WHOLE;
      controls.hidden = agents.length < 2;
    };
    const worst = (all) => all.reduce((best, one) => ((one.epsilon ?? Infinity) > (all[best].epsilon ?? Infinity) ? one.agent : best), 0);
    input.addEventListener("change", () => {
      const found = now.graph.names.indexOf(input.value.trim());
      if (found >= 0) choose(found);
      else if (input.value.trim()) told.replaceChildren("There is no agent ", topdp.name(input.value.trim()), ".");
    });
    new ResizeObserver(() => {
      if (canvas.clientWidth === 0) return;
      if (!cy) build();
      else { cy.resize(); if (!cy.userPanningEnabled()) frame(); }
    }).observe(canvas);
    const stop = topdp.onTheme(() => {
      if (!figure.isConnected) return stop();
      if (cy) { cy.style(style()); elements().forEach((one) => cy.$id(one.data.id).data(one.data)); }
    });
    update(facts);
    return { element: figure, update };
  };
})();
