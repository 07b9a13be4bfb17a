// Curves along the rounds, and histograms. Each has a sentence for screen readers, and a table.
"use strict";
(() => {
  const topdp = window.topdp;
  const el = topdp.el;
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 4], [4, 4]];
  const HEIGHT = 260;

  topdp.look = (place) => ({ colour: `c${place % 6}`, dash: DASHES[Math.floor(place / 6 + place) % DASHES.length] });

  // spec: {title, note, xTitle, percent, least, series: [{label, rounds, mean, min, max, look}], sentence, mark}
  topdp.curves = (spec) => {
    const plot = el("div", { class: "plot", role: "img" });
    const reading = el("p", { class: "reading", "aria-hidden": "true" }, "");
    const whole = el("button", { type: "button", class: "small", hidden: true }, "Whole curve");
    const keys = el("ul", { class: "keys" });
    const words = el("p", { class: "words" });
    const table = topdp.fold("Show as a table", (inside, now) => curveTable(inside, now));
    const figure = el("figure", { class: "curves" }, el("figcaption", {}), plot, reading, whole, keys, words, table.element);
    let chart = null, now = null, zoomed = false, shape = "";

    const say = (value) => (now.percent ? topdp.percent(value, 1) : topdp.number(value));
    const options = () => {
      const series = [{}], bands = [];
      now.series.forEach((one) => {
        const colour = topdp.colour(one.look.colour);
        series.push({ stroke: colour, width: 2, dash: one.look.dash, spanGaps: true, points: { show: one.rounds.length < 2 } });
        if (one.min) {
          const at = series.length;
          series.push({ stroke: colour, width: 0.5, spanGaps: true, points: { show: false } });
          series.push({ stroke: colour, width: 0.5, spanGaps: true, points: { show: false } });
          bands.push({ series: [at, at + 1], fill: colour + "2e" });
        }
      });
      const axis = { stroke: topdp.colour("ink"), grid: { stroke: topdp.colour("line"), width: 1 },
        ticks: { stroke: topdp.colour("line") }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
      const steps = (u, splits) => splits.map((value) => (now.percent ? `${Number((100 * value).toPrecision(6))}%` : String(Number(value.toPrecision(6)))));
      return {
        width: Math.max(plot.clientWidth, 240), height: HEIGHT, legend: { show: false }, series, bands,
        scales: { x: { time: false }, y: { range: (u, low, high) => span(low, high, now.percent ? 0 : now.least, now.percent ? 1 : Infinity) } },
        axes: [{ ...axis, label: now.xTitle || "round", labelSize: 18, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000] },
          { ...axis, size: 62, values: steps }].map((one, at) => (at ? one : { ...one, values: (u, splits) => splits.map(String) })),
        cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false, uni: 10 } },
        hooks: {
          setCursor: [(u) => read(u)],
          setSelect: [(u) => { if (u.select.width > 0) { zoomed = true; whole.hidden = false; } }],
          draw: [(u) => drawMark(u)],
        },
      };
    };
    const drawMark = (u) => {
      if (now.mark === null || now.mark === undefined) return;
      const x = u.valToPos(now.mark, "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
      const ctx = u.ctx;
      ctx.save();
      ctx.strokeStyle = topdp.colour("ink");
      ctx.setLineDash([4, 4]);
      ctx.beginPath();
      ctx.moveTo(x, u.bbox.top);
      ctx.lineTo(x, u.bbox.top + u.bbox.height);
      ctx.stroke();
      ctx.restore();
    };
    const read = (u) => {
      const at = u.cursor.idx;
      if (at === null || at === undefined) return void (reading.textContent = "");
      const round = u.data[0][at];
      const told = now.series.map((one) => {
        const place = one.rounds.indexOf(round);
        if (place < 0 || one.mean[place] === null) return null;
        const spread = one.min ? ` (${say(one.min[place])} to ${say(one.max[place])})` : "";
        return `${one.label}: ${say(one.mean[place])}${spread}`;
      });
      reading.textContent = `${now.xTitle || "round"} ${round} · ${told.filter(Boolean).join(" · ")}`;
    };
    const joined = () => {
      const tables = now.series.map((one) => [one.rounds, one.mean, ...(one.min ? [one.max, one.min] : [])]);
      return tables.length === 1 ? tables[0] : window.uPlot.join(tables);
    };
    const build = () => {
      if (!plot.isConnected || plot.clientWidth === 0) return;
      const range = chart && zoomed ? { min: chart.scales.x.min, max: chart.scales.x.max } : null;
      if (chart) chart.destroy();
      chart = new window.uPlot(options(), joined(), plot);
      if (range) chart.setScale("x", range);
    };
    const update = (next) => {
      now = next;
      figure.querySelector("figcaption").textContent = now.title;
      plot.setAttribute("aria-label", now.sentence);
      words.textContent = now.note || "";
      keys.replaceChildren(...now.series.map((one) => el("li", {}, swatch(one.look), topdp.name(one.label))));
      keys.hidden = now.series.length < 2;
      table.update(now);
      const same = JSON.stringify(now.series.map((one) => [one.label, one.look, Boolean(one.min)]));
      if (!chart || same !== shape) { shape = same; build(); }
      else if (zoomed) {
        const { min, max } = chart.scales.x;
        chart.setData(joined(), false);
        chart.setScale("x", { min, max });
      } else chart.setData(joined());
    };
    whole.addEventListener("click", () => {
      zoomed = false;
      whole.hidden = true;
      chart.setData(chart.data);
      plot.parentElement.querySelector("summary").focus();
    });
    const watch = new ResizeObserver(() => {
      if (!now || plot.clientWidth === 0) return;
      if (!chart) build();
      else if (chart.width !== plot.clientWidth) chart.setSize({ width: plot.clientWidth, height: HEIGHT });
    });
    watch.observe(plot);
    const stop = topdp.onTheme(() => (figure.isConnected ? now && build() : stop()));
    update(spec);
    return { element: figure, update };
  };

  const span = (low, high, least, most) => {
    if (low === null || high === null) return [0, 1];
    const room = high > low ? 0.06 * (high - low) : Math.abs(high) * 0.1 || 0.5;
    // Shares end at 100%; leave room so that a line on that edge is drawn in full width.
    return [least === undefined ? low - room : Math.max(least, low - room), Math.min(high + room, Math.max(high, most) + room / 8)];
  };

  const swatch = (look) => {
    const line = el("line", { x1: 0, y1: 5, x2: 30, y2: 5, class: `stroke-${look.colour}`, "stroke-width": 3,
      "stroke-dasharray": look.dash.join(" ") || "none" });
    return el("svg", { width: 30, height: 10, "aria-hidden": "true" }, line);
  };

  const curveTable = (inside, now) => {
    const say = (value) => (value === null ? "undefined" : now.percent ? topdp.percent(value) : topdp.number(value));
    const many = now.series.length > 1;
    const head = [{ text: now.xTitle || "round", numeric: true }];
    now.series.forEach((one) => {
      const label = many ? `${one.label}: ` : "";
      head.push({ text: one.min ? `${label}mean` : `${label}${now.yTitle || "value"}`, numeric: true });
      if (one.min) head.push({ text: `${label}least`, numeric: true }, { text: `${label}largest`, numeric: true });
    });
    const rounds = [...new Set(now.series.flatMap((one) => one.rounds))].sort((a, b) => a - b);
    const places = now.series.map((one) => new Map(one.rounds.map((round, place) => [round, place])));
    const rows = rounds.map((round) => [{ show: String(round), sort: round }, ...now.series.flatMap((one, number) => {
      const place = places[number].get(round);
      const parts = one.min ? [one.mean, one.min, one.max] : [one.mean];
      return parts.map((part) => place === undefined ? { show: "", sort: null }
        : { show: topdp.value(part[place], say(part[place])), sort: part[place] });
    })]);
    topdp.fillTable(inside, { caption: now.title, head, rows });
  };

  // A histogram of one value per agent. spec: {title, values, percent, sentence}
  topdp.histogram = (spec) => {
    const figure = el("figure", { class: "histogram" });
    let drawn = "";
    const update = (now) => {
      if (drawn === (drawn = JSON.stringify(now))) return;
      const known = now.values.filter((value) => value !== null && Number.isFinite(value));
      const say = (value) => (now.percent ? topdp.percent(value, 1) : topdp.number(value));
      const low = Math.min(...known), high = Math.max(...known);
      const bins = known.length ? (high > low ? 20 : 1) : 0;
      const counts = new Array(bins).fill(0);
      known.forEach((value) => counts[Math.min(bins - 1, Math.floor(((value - low) / (high - low || 1)) * bins))]++);
      const most = Math.max(1, ...counts);
      const wide = bins > 1 ? 400 / bins : 40, left = bins > 1 ? 0 : 180;
      const bars = counts.map((count, place) => el("rect", { x: left + place * wide + 1, width: wide - 2,
        y: 110 - (100 * count) / most, height: (100 * count) / most, class: "bar" }));
      const sentence = known.length
        ? `${now.title}: ${known.length} agents, from ${say(low)} to ${say(high)}; the tallest bar is ${most} agents.`
        : `${now.title}: no agent has a finite value.`;
      const picture = el("svg", { viewBox: "0 0 400 130", role: "img", "aria-label": sentence }, bars,
        el("line", { x1: 0, y1: 110, x2: 400, y2: 110, class: "axis" }),
        el("text", { x: 0, y: 125, class: "tick" }, known.length ? say(low) : ""),
        el("text", { x: 400, y: 125, class: "tick", "text-anchor": "end" }, known.length ? say(high) : ""));
      const holder = el("div", {});
      const fold = topdp.fold("Show as a table", (inside) => topdp.fillTable(inside, {
        caption: now.title, head: [{ text: "from", numeric: true }, { text: "to", numeric: true }, { text: "agents", numeric: true }],
        rows: counts.map((count, place) => [low + (place * (high - low)) / bins, low + ((place + 1) * (high - low)) / bins, count]
          .map((value, column) => ({ show: column < 2 ? say(value) : String(value), sort: value }))),
      }));
      fold.update(now);
      holder.append(fold.element);
      figure.replaceChildren(el("figcaption", {}, now.title), picture, el("p", { class: "words" }, sentence), holder);
    };
    update(spec);
    return { element: figure, update };
  };
})();
