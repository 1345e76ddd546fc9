// Turns the page's pictures into charts that answer: values under the pointer, methods on and off, logarithmic axes,
// zoom. Without it, and on paper, the pictures stay as they are.
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const hidden = {}; // by group: the names that are switched off, in all charts of a comparison at once
  const every = []; // all live charts

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (line) => css(line.colour === undefined ? "--ink" : `--c${line.colour}`);
  const finite = (v) => v !== null && v !== undefined && Number.isFinite(v);

  function make(tag, properties = {}, ...children) {
    const out = Object.assign(document.createElement(tag), properties);
    out.append(...children);
    return out;
  }

  // As the table prints values: four decimals, or four digits of what is very large or small.
  function shown(v) {
    if (v === 0 || (Math.abs(v) >= 1e-3 && Math.abs(v) < 100)) return v.toFixed(4);
    return String(Number(v.toPrecision(4)));
  }

  const place = (chart, x) => {
    if (chart.ticks.length) return (chart.ticks[Math.round(x)] || { name: "" }).name;
    if (chart.percent) return `${Math.round(100 * x)} %`;
    return Number(x.toPrecision(6)).toLocaleString("en");
  };

  const plain = (v) => (v !== 0 && (Math.abs(v) < 1e-4 || Math.abs(v) >= 1e7) ? v.toExponential() : v.toLocaleString("en", { maximumSignificantDigits: 6 }));

  // Round numbers between two limits, on a logarithmic axis too if it spans less than a few powers of ten.
  function rounded(low, high, count) {
    const rough = (high - low) / Math.max(count, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
    const out = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) out.push(Number(v.toPrecision(12)));
    return out;
  }

  function powers(low, high, count) {
    if (high / low < 30) return rounded(low, high, count);
    const out = [];
    const wide = high / low > 10 ** count;
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
      for (const m of wide ? [1] : [1, 3]) if (m * 10 ** p >= low && m * 10 ** p <= high) out.push(m * 10 ** p);
    return out;
  }

  const ticks = (log, space) => (u, axis, low, high) => {
    const side = axis === 0 ? u.bbox.width : u.bbox.height;
    const count = Math.max(2, Math.floor(side / devicePixelRatio / space));
    return log ? powers(low, high, count) : rounded(low, high, count);
  };

  // One set of columns per part of a line, joined on x: [x, y, low, high, …] with the series that draw them.
  function columns(chart, view) {
    const able = (x, y) => (!view.logx || x > 0) && (!view.logy || y > 0);
    const tables = [], series = [{}], bands = [];
    for (const line of chart.lines)
      for (const part of line.parts) {
        const keep = part.x.map((x, i) => i).filter((i) => finite(part.y[i]) && able(part.x[i], part.y[i]));
        if (!keep.length) continue;
        const pick = (values) => keep.map((i) => (values[i] === null || (view.logy && values[i] <= 0) ? null : values[i]));
        const table = [pick(part.x), pick(part.y)];
        const few = keep.length <= 12 && !chart.percent;
        const stroke = () => colour(line);
        series.push({
          label: line.label, line, part, stroke, width: part.alone ? 1 : line.width, dash: line.dash, main: true,
          points: { show: few || chart.points, size: part.alone ? 4 : 6, fill: stroke, width: 0 },
        });
        if (part.low && !chart.points && keep.length > 1) {
          table.push(pick(part.high), pick(part.low));
          for (let k = 0; k < 2; k++) series.push({ line, stroke: "transparent", width: 0, points: { show: false } });
          const fill = () => `color-mix(in srgb, ${colour(line)} 16%, transparent)`;
          bands.push({ series: [series.length - 2, series.length - 1], fill });
        }
        tables.push(table);
      }
    return { data: tables.length ? uPlot.join(tables) : [[]], series, bands };
  }

  // The nearest place at which a series has a value: methods that move other bytes have other places.
  function nearest(u, si, idx) {
    const ys = u.data[si], xs = u.data[0];
    if (finite(ys[idx])) return idx;
    let left = idx, right = idx;
    while (left >= 0 && !finite(ys[left])) left--;
    while (right < ys.length && !finite(ys[right])) right++;
    if (left < 0) return right < ys.length ? right : idx;
    if (right >= ys.length) return left;
    const x = u.posToVal(u.cursor.left, "x");
    return x - xs[left] <= xs[right] - x ? left : right;
  }

  function tip(u, chart, box) {
    const idx = u.cursor.idx;
    box.hidden = idx === null || idx === undefined || u.cursor.left < 0;
    if (box.hidden) return;
    const rows = [], at = new Set();
    let close = null, gap = Infinity;
    u.series.forEach((s, i) => {
      if (!s.main || !s.show) return;
      const j = nearest(u, i, idx), x = u.data[0][j], y = u.data[i][j];
      if (!finite(y) || x < u.scales.x.min || x > u.scales.x.max) return;
      if (s.part.alone && rows.some((r) => r.line === s.line && !r.alone && r.x === x)) return;
      const k = s.part.x.indexOf(x);
      const range = s.part.low && k >= 0 ? ` (${shown(s.part.low[k])} to ${shown(s.part.high[k])})` : "";
      rows.push({ line: s.line, alone: s.part.alone, x, text: shown(y) + range });
      at.add(place(chart, x));
      const far = Math.abs(u.valToPos(y, "y") - u.cursor.top) + Math.abs(u.valToPos(x, "x") - u.cursor.left);
      if (far < gap) [gap, close] = [far, rows.length - 1];
    });
    if (chart.ticks.length) {
      const group = Math.round(u.data[0][idx]);
      for (let i = rows.length - 1; i >= 0; i--) if (Math.round(rows[i].x) !== group) rows.splice(i, 1);
      close = rows.length ? 0 : null;
    }
    box.hidden = !rows.length;
    if (box.hidden) return;
    const common = chart.ticks.length || at.size === 1;
    const unit = chart.xlabel.split("\n")[0].split(",")[0];
    const head = common ? place(chart, rows[0].x) : place(chart, u.posToVal(u.cursor.left, "x"));
    const title = chart.ticks.length ? head : chart.percent ? `${head} of the clients` : `${unit}: ${head}`;
    box.replaceChildren(make("strong", { textContent: title }));
    rows.slice(0, 14).forEach((row, i) => {
      const where = common ? "" : ` at ${place(chart, row.x)}`;
      const name = make("span", { className: "name", textContent: row.line.label });
      const value = make("span", { className: "value", textContent: row.text + where });
      box.append(make("div", { className: i === close ? "near" : "" }, swatch(row.line), name, value));
    });
    const width = u.over.clientWidth, wide = box.offsetWidth;
    const left = u.cursor.left + 16 + wide > width ? Math.max(u.cursor.left - 16 - wide, Math.min(0, width - wide)) : u.cursor.left + 16;
    const top = Math.max(0, Math.min(u.cursor.top - 12, u.over.clientHeight - box.offsetHeight));
    box.style.transform = `translate(${left}px, ${top}px)`;
  }

  function swatch(line) {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg"), path = document.createElementNS(ns, "line");
    for (const [k, v] of Object.entries({ viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" })) svg.setAttribute(k, v);
    const look = { x1: 1, x2: 25, y1: 4, y2: 4, "stroke-width": line.width + 0.4, "stroke-dasharray": line.dash.join(" ") };
    for (const [k, v] of Object.entries(look)) path.setAttribute(k, v);
    path.style.stroke = `var(--c${line.colour})`;
    svg.append(path);
    return svg;
  }

  // Horizontal lines with names, and bars from lowest to highest.
  function extras(u, chart, off) {
    const ctx = u.ctx, ratio = devicePixelRatio, { left, top, width, height } = u.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.font = `${12 * ratio}px ${css("--font")}`;
    for (const mark of chart.marks) {
      const y = u.valToPos(mark.y, "y", true);
      if (!Number.isFinite(y) || y < top || y > top + height) continue;
      ctx.strokeStyle = ctx.fillStyle = mark.colour === undefined ? css("--muted") : colour(mark);
      ctx.lineWidth = 1.3 * ratio;
      ctx.setLineDash(mark.dash ? [7 * ratio, 5 * ratio] : [2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
      ctx.textAlign = "right";
      ctx.textBaseline = y - top < 18 * ratio ? "top" : "bottom";
      ctx.fillText(mark.text, left + width - 4 * ratio, y + (ctx.textBaseline === "top" ? 3 : -3) * ratio);
    }
    ctx.setLineDash([]);
    if (chart.points)
      for (const line of chart.lines.filter((l) => !off.has(l.label)))
        for (const part of line.parts.filter((p) => p.low)) {
          ctx.strokeStyle = colour(line);
          ctx.lineWidth = ratio;
          part.x.forEach((x, i) => {
            const at = u.valToPos(x, "x", true);
            ctx.beginPath();
            ctx.moveTo(at, u.valToPos(part.low[i], "y", true));
            ctx.lineTo(at, u.valToPos(part.high[i], "y", true));
            ctx.stroke();
          });
        }
    if (chart.ticks.length && chart.ticks[0].apart) {
      const at = u.valToPos(0.5, "x", true);
      ctx.strokeStyle = css("--muted");
      ctx.lineWidth = ratio;
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
      ctx.stroke();
    }
    ctx.restore();
  }

  // The limits of y: the picture's own where nothing is zoomed, no wider than what is switched on.
  function limits(chart, view, off) {
    return (u, low, high) => {
      if (view.logy) return finite(low) ? [low * 0.97, high * 1.03] : [0.1, 1];
      if (chart.limits && !view.zoomed) {
        if (!chart.lines.some((l) => off.has(l.label))) return chart.limits;
        const ranges = chart.lines.filter((l) => !off.has(l.label)).flatMap((l) => l.parts.map((p) => p.range));
        if (!ranges.length) return chart.limits;
        low = Math.max(chart.limits[0], Math.min(...ranges.map((r) => r[0]), ...chart.marks.map((m) => m.y)));
        high = Math.min(chart.limits[1], Math.max(...ranges.map((r) => r[1]), ...chart.marks.map((m) => m.y)));
      }
      if (!finite(low)) return [0, 1];
      const pad = 0.05 * (high - low) || 0.05 * Math.abs(high) || 0.5;
      return [low - pad, high + pad];
    };
  }

  function build(chart, view, off, holder) {
    const { data, series, bands } = columns(chart, view);
    const box = make("div", { className: "tip", hidden: true });
    const grid = () => ({ stroke: () => css("--line"), width: 1 });
    const axis = () => ({ stroke: () => css("--ink"), grid: grid(), ticks: grid(), font: `12px ${css("--font")}` });
    const bound = chart.ticks.length ? [-0.6, chart.ticks.length - 0.4] : null;
    const narrow = holder.clientWidth < 520;
    const xaxis = chart.ticks.length
      ? { splits: () => chart.ticks.map((_, i) => i), size: 44, values: () => chart.ticks.map((t) => `${narrow ? t.short : t.name}\n${narrow ? t.under.replace(/,\d{3}$/, "k").replace(/,/g, "") : t.under}`) }
      : { splits: ticks(view.logx, 70), size: 32, values: (u, v) => v.map((x) => (chart.percent ? `${Math.round(100 * x)} %` : plain(x))) };
    const pad = (low, high) => {
      if (bound) return bound;
      if (!finite(low)) return [0, 1];
      if (view.logx) return low === high ? [low / 2, high * 2] : [low / 1.05, high * 1.05];
      const room = 0.02 * (high - low) || 0.5;
      return [low - room, high + room];
    };
    const u = new uPlot({
      width: holder.clientWidth, height: Math.max(290, Math.min(420, Math.round(holder.clientWidth * 0.62))),
      legend: { show: false }, bands, padding: [10, 12, 0, 0],
      series: series.map((s) => (s.line ? { ...s, show: !off.has(s.line.label), spanGaps: false } : s)),
      scales: {
        x: { time: false, distr: view.logx ? 3 : 1, range: (u, low, high) => (view.zoomed ? [low, high] : pad(low, high)) },
        y: { distr: view.logy ? 3 : 1, range: limits(chart, view, off) },
      },
      axes: [
        { ...axis(), filter: (u, v) => v, ...xaxis },
        {
          ...axis(), filter: (u, v) => v, splits: ticks(view.logy, 45), values: (u, v) => v.map(plain),
          size: (u, values) => Math.max(40, 18 + 7.2 * Math.max(0, ...(values || []).map((v) => v.length))),
        },
      ],
      cursor: {
        drag: { x: true, y: true, uni: 40, dist: 5 }, focus: { prox: -1 },
        dataIdx: nearest, y: false,
        points: { show: (u, i) => u.series[i].main || false, size: 8 },
      },
      hooks: {
        ready: [(u) => u.over.append(box)],
        setCursor: [(u) => tip(u, chart, box)],
        draw: [(u) => extras(u, chart, off)],
        setSelect: [(u) => { if (u.select.width > 0 || u.select.height > 0) view.zoom(true); }],
      },
    }, data, holder);
    u.over.addEventListener("dblclick", () => view.reset());
    u.over.addEventListener("mouseleave", () => { box.hidden = true; });
    return u;
  }

  function start(views) {
    const figures = [...views.querySelectorAll("figure[data-chart]")];
    const group = views.dataset.group;
    const off = (hidden[group] ??= new Set());
    const holder = make("div", { className: "plot", tabIndex: 0 });
    const ylabel = make("p", { className: "axis" }), xlabel = make("p", { className: "axis x" }), cut = make("p", { className: "axis cut" });
    const key = make("div", { className: "key", role: "group", ariaLabel: "methods" });
    const bar = make("div", { className: "bar" });
    const live = make("div", { className: "live" }, bar, key, ylabel, holder, xlabel, cut);
    const view = { at: 0, logx: false, logy: false, zoomed: false, plot: null };
    const button = (text, act, parent, title = "") => {
      const b = make("button", { type: "button", textContent: text, title });
      b.addEventListener("click", act);
      parent.append(b);
      return b;
    };
    const chart = () => charts[figures[view.at].dataset.chart];
    const tabs = make("div", { className: "tabs", role: "group", ariaLabel: "what the values are shown against" });
    if (figures.length > 1) {
      figures.forEach((f, i) => button(charts[f.dataset.chart].tab, () => select(i), tabs));
      bar.append(tabs);
    }
    const tools = make("div", { className: "tools", role: "group", ariaLabel: "axes and zoom" });
    bar.append(tools);
    const logx = button("log x", () => { view.logx = !view.logx; redraw(); }, tools, "Logarithmic horizontal axis");
    const logy = button("log y", () => { view.logy = !view.logy; redraw(); }, tools, "Logarithmic vertical axis");
    const reset = button("reset zoom", () => view.reset(), tools, "Or double-click. Drag over the chart to zoom.");
    view.zoom = (on) => { view.zoomed = on; reset.disabled = !on; };
    view.reset = () => { view.zoom(false); redraw(); };

    function redraw() {
      view.plot?.destroy();
      view.zoom(false);
      logx.setAttribute("aria-pressed", view.logx);
      logy.setAttribute("aria-pressed", view.logy);
      const c = chart();
      ylabel.textContent = c.ylabel;
      xlabel.textContent = c.xlabel.replace("\n", " ");
      cut.textContent = view.logy ? "" : c.cut;
      view.plot = build(c, view, off, holder);
      holder.setAttribute("aria-label", `${c.about} Arrow keys read values.`);
    }

    function names() {
      key.replaceChildren();
      for (const line of chart().lines) {
        const b = button("", () => toggle(group, line.label), key, "Switch on or off; with Shift: this one alone");
        b.append(swatch(line), line.label);
        b.dataset.label = line.label;
        b.setAttribute("aria-pressed", !off.has(line.label));
        b.addEventListener("click", (event) => { if (event.shiftKey) alone(group, line.label); });
      }
    }

    function select(i) {
      view.at = i;
      const c = chart(), positive = (values) => values.some((v) => v > 0);
      view.logx = c.log;
      view.logy = c.logy;
      [...tabs.children].forEach((b, j) => b.setAttribute("aria-pressed", i === j));
      figures.forEach((f, j) => f.classList.toggle("shown", i === j));
      logx.hidden = Boolean(c.ticks.length) || c.percent || !c.lines.some((l) => l.parts.some((p) => positive(p.x)));
      logy.hidden = !c.lines.some((l) => l.parts.some((p) => positive(p.y)));
      names();
      redraw();
    }

    holder.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const u = view.plot;
      if (!step || !u) return;
      event.preventDefault();
      const xs = u.data[0], low = u.scales.x.min, high = u.scales.x.max;
      let i = u.cursor.idx ?? (step > 0 ? -1 : xs.length);
      do i += step; while (i >= 0 && i < xs.length && (xs[i] < low || xs[i] > high));
      if (i >= 0 && i < xs.length) u.setCursor({ left: u.valToPos(xs[i], "x"), top: u.over.clientHeight / 3 });
    });
    views.prepend(live);
    views.classList.add("live-on");
    every.push({ group, view, off, names, figures });
    select(0);
    new ResizeObserver(() => {
      const u = view.plot, width = holder.clientWidth;
      if (u && width && Math.abs(width - u.width) > 1) redraw();
    }).observe(holder);
  }

  function show(group) {
    for (const one of every.filter((o) => o.group === group)) {
      one.names();
      const u = one.view.plot;
      u.batch(() => u.series.forEach((s, i) => {
        if (s.line && s.show === one.off.has(s.line.label)) u.setSeries(i, { show: !s.show });
      }));
      u.redraw(true, true);
    }
  }

  function toggle(group, label) {
    const off = hidden[group], focused = document.activeElement;
    const where = focused?.closest?.(".key");
    if (!off.delete(label)) off.add(label);
    show(group);
    [...(where?.children ?? [])].find((b) => b.dataset.label === label)?.focus();
  }

  function alone(group, label) {
    const labels = new Set(every.filter((o) => o.group === group).flatMap((o) => o.figures.flatMap((f) => charts[f.dataset.chart].lines.map((l) => l.label))));
    hidden[group].clear();
    labels.delete(label);
    labels.forEach((name) => hidden[group].add(name));
    show(group);
  }

  for (const views of document.querySelectorAll(".views")) {
    try {
      start(views);
    } catch (error) { // the picture stays
      views.classList.remove("live-on");
      views.querySelector(".live")?.remove();
      console.error(error);
    }
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => every.forEach((o) => o.view.plot.redraw(false)));
  document.documentElement.classList.add("js");
})();
