/* Draws the API's time series of a job, each plot when it comes into view. */
"use strict";

(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const COLOURS = {
    light: ["#1f5fa8", "#c05621", "#2f855a", "#7a4fb5", "#b7791f", "#b83280", "#2c7a7b", "#5a6472"],
    dark: ["#6aa5e8", "#e98a4b", "#5cc08a", "#b794f4", "#e0b050", "#f08ac0", "#5cc4c4", "#a5b0bd"],
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const UNITS = {
    bytes: (v) => scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]),
    "bytes/s": (v) => scaled(v, 1024, ["B/s", "KiB/s", "MiB/s", "GiB/s"]),
    ratio: (v) => `${short(v * 100)} %`,
    watts: (v) => scaled(v, 1000, ["W", "kW", "MW"]),
    cores: (v) => `${short(v)} CPUs`,
    celsius: (v) => `${short(v)} °C`,
    "1/s": (v) => `${short(v)} /s`,
  };
  const short = (v) => String(Number(v.toPrecision(3)));
  const write = (unit, v) => (UNITS[unit] || short)(v);

  function scaled(value, step, units) {
    let power = 0;
    while (Math.abs(value) >= step && power < units.length - 1) { value /= step; power += 1; }
    return `${short(value)} ${units[power]}`;
  }

  /* Two requests at a time; the server lets users take turns, and says when to retry. */
  let free = 2;
  const waiting = [];
  async function fetchWithRetry(url) {
    if (free === 0) await new Promise((go) => waiting.push(go)); else free -= 1;
    try {
      for (let tries = 1; ; tries += 1) {
        const answer = await fetch(url, { credentials: "same-origin" });
        if (tries === 5 || ![429, 503].includes(answer.status)) return answer;
        const seconds = Number(answer.headers.get("retry-after")) || 2;
        await new Promise((go) => setTimeout(go, 1000 * Math.min(seconds, 10)));
      }
    } finally {
      if (waiting.length) waiting.shift()(); else free += 1;
    }
  }

  /* Convert rows of the API to lines: {metric, line, unit, points: [{time, min, mean, max}]}. */
  async function fetchSeries(api, curves, { aggregate = false, points = 600, node = "" } = {}) {
    const url = new URL(api, location.href);
    for (const curve of curves) url.searchParams.append("metric", curve);
    url.searchParams.set("points", points);
    if (aggregate) url.searchParams.set("aggregate", "true");
    if (node) url.searchParams.set("node", node);
    const spread = url.pathname.includes("/nodes/") ? "" : ",min,max"; // for nodes, there are only means
    url.searchParams.set("fields", `metric,node,line,unit,time,mean${spread}`);
    const answer = await fetchWithRetry(url);
    if (!answer.ok) throw new Error((await answer.json()).detail || answer.statusText);
    const found = new Map();
    for (const row of await answer.json()) {
      const key = `${row.metric}\n${row.line}`;
      if (!found.has(key)) found.set(key, { metric: row.metric, line: row.line, node: row.node, unit: row.unit, points: [] });
      found.get(key).points.push({ min: row.mean, max: row.mean, ...row });
    }
    return [...found.values()];
  }

  /* Show gaps in time as gaps in the line. */
  function withGaps(points) {
    const steps = points.slice(1).map((point, i) => point.time - points[i].time).sort((a, b) => a - b);
    const usual = steps[Math.floor(steps.length / 2)] || 0;
    const made = [];
    points.forEach((point, i) => {
      if (i && point.time - points[i - 1].time > 2.5 * usual) made.push({ time: point.time - 1, min: null, mean: null, max: null });
      made.push(point);
    });
    return made;
  }

  const WORDS = {
    cpu: "", memory: "all", memory_working_set: "no idle cache", file_read: "read", file_write: "written",
    io_read: "read", io_write: "written", pressure_cpu: "CPU", pressure_memory: "memory", pressure_io: "storage",
    network_receive: "received", network_transmit: "sent",
  };
  const WHOLE = document.querySelector(".plots[data-whole]") ? "node" : "job"; // name of a line without a name of its own
  const lineName = (each, several) => [several ? (WORDS[each.metric] ?? each.metric.replaceAll("_", " ")) : "", each.line].filter(Boolean).join(", ") || WHOLE;
  const { wall, epoch } = window.batchjobTime;

  /* A colour for each line: from the palette if it is large enough, otherwise from the colour wheel. */
  function colourOf(place, count) {
    const colours = COLOURS[dark.matches ? "dark" : "light"];
    if (count <= colours.length) return colours[place];
    return `hsl(${Math.round((place * 360) / count)}, ${dark.matches ? "65%, 66%" : "70%, 38%"})`;
  }
  const translucent = (colour) => (colour.startsWith("#") ? `${colour}30` : colour.replace("hsl(", "hsla(").replace(")", ", 0.19)"));

  function traces(found, several) {
    const made = [];
    const metrics = [...new Set(found.map((each) => each.metric))];
    const places = [...new Set(found.map((each) => each.line))];
    found.forEach((each) => {
      // One colour per node or GPU; if there is only one of them, one per curve.
      const many = places.length > 1;
      const place = many ? places.indexOf(each.line) : metrics.indexOf(each.metric);
      const dotted = many && metrics.indexOf(each.metric) > 0;
      const colour = colourOf(place, many ? places.length : metrics.length);
      const points = withGaps(each.points);
      const x = points.map((point) => wall(point.time));
      const name = escaped(lineName(each, several));
      if (found.length <= 4 && points.some((point) => point.max !== point.min)) {
        const edge = { x, mode: "lines", line: { width: 0, color: colour }, hoverinfo: "skip", showlegend: false, legendgroup: name };
        made.push({ ...edge, y: points.map((point) => point.min) });
        made.push({ ...edge, y: points.map((point) => point.max), fill: "tonexty", fillcolor: translucent(colour) });
      }
      made.push({
        x, y: points.map((point) => point.mean), name, legendgroup: name, mode: points.length > 1 ? "lines" : "markers",
        line: { color: colour, width: 1.6, dash: dotted ? "dot" : "solid" },
        text: points.map((point) => point.mean === null ? "" : write(each.unit, point.mean)), hovertemplate: "%{text}<extra>%{fullData.name}</extra>",
      });
    });
    return made;
  }

  /* Plotly interprets some markup in names, which users choose. */
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  function axis(unit, top) {
    const base = unit.startsWith("bytes") ? 1024 : 1000;
    let factor = 1;
    while (top / factor >= base && (unit.startsWith("bytes") || unit === "watts")) factor *= base;
    const raw = (unit === "ratio" ? top : top / factor) / 4;
    const power = 10 ** Math.floor(Math.log10(raw || 1));
    const found = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999) * (unit === "ratio" ? 1 : factor);
    const step = unit === "count" ? Math.max(1, Math.ceil(found)) : found;
    const values = [];
    for (let v = 0; v <= top * 1.001 + step && values.length < 8; v += step) values.push(v);
    return { tickvals: values, ticktext: values.map((v) => v ? write(unit, v) : "0") };
  }

  function layout(unit, top, x) {
    const text = css("--soft"), grid = css("--line");
    return {
      margin: { l: 78, r: 12, t: 8, b: 34 }, height: 240, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: 12, family: "system-ui, sans-serif" }, hovermode: "x unified",
      hoverlabel: { bgcolor: css("--ground"), bordercolor: grid, font: { color: css("--text") } },
      xaxis: { gridcolor: grid, linecolor: grid, zeroline: false, ...x },
      yaxis: { gridcolor: grid, linecolor: grid, zeroline: false, range: [0, top * 1.06], fixedrange: true, ...axis(unit, top) },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { color: text, size: 11 } }, dragmode: "zoom",
    };
  }

  const CONFIG = { responsive: true, displayModeBar: false, displaylogo: false, doubleClick: "reset" };
  const until = (plots) => (plots.dataset.until * 1000 + (plots.dataset.running ? performance.now() : 0));
  const fullRange = (plots) => [wall(plots.dataset.since * 1000), wall(until(plots))];

  /* The zoom is in the URL, in epoch seconds, so that a link shows the same. */
  function zoomFromUrl() {
    const found = /^#from=(\d+)&to=(\d+)$/.exec(location.hash);
    return found ? [wall(found[1] * 1000), wall(found[2] * 1000)] : null;
  }

  function storeZoomInUrl(range) {
    const hash = range ? `#from=${Math.floor(epoch(range[0]) / 1000)}&to=${Math.ceil(epoch(range[1]) / 1000)}` : "";
    history.replaceState(null, "", location.pathname + location.search + hash);
  }

  function limits(figure, found) {
    const bounds = found.map((each) => ({ value: Math.max(...each.points.map((point) => point.max)), line: each.line, unit: each.unit }));
    if (figure.dataset.ceiling) bounds.push({ value: Number(figure.dataset.ceiling), line: "", unit: "" });
    const values = [...new Set(bounds.map((each) => each.value))].filter((value) => Number.isFinite(value) && value > 0);
    return values.slice(0, 4);
  }

  /* Shaded zones in the plot's unit: fractions of the lowest limit, which is not too much for any line. */
  function zones(figure, bounds) {
    const limit = Math.min(...bounds);
    if (!Number.isFinite(limit)) return [];
    return JSON.parse(figure.dataset.zones || "[]").map((zone) => ({ ...zone, value: zone.ratio * limit }));
  }
  const zoneNamed = (zone, unit) => `${zone.words}: ${zone.side} ${write(unit, zone.value)}`;

  function highest(found) {
    return Math.max(0, ...found.flatMap((each) => each.points.map((point) => point.max)));
  }

  function describePlot(figure, found, bounds, shades, aggregate) {
    const unit = found[0].unit;
    let words = `Highest ${write(unit, highest(found))}`;
    if (figure.dataset.peak) words += `, peak between samples ${write(unit, Number(figure.dataset.peak))}`;
    if (bounds.length) words += `, limit ${bounds.map((value) => write(unit, value)).join(", ")}`;
    if (shades.length) words += `; shaded is ${shades.join(", ")}`;
    if (aggregate) words += `; the line is the median of ${aggregate}, the band goes from the lowest to the highest`;
    figure.querySelector(".told").textContent = `${words}.`;
  }

  /* If there are many nodes or GPUs, show an aggregate first, and each of them on demand. */
  const FEW = 4;
  function manyLabel(figure, plots, found = []) {
    if (plots.dataset.whole) {
      const lines = new Set(found.map((each) => each.line)).size;
      return lines > FEW ? `${lines} GPUs` : "";
    }
    const { nodes, gpus } = plots.dataset;
    const gpu = figure.dataset.curves.startsWith("gpu_");
    const count = Number(gpu ? gpus : nodes);
    return count > FEW ? `${count} ${gpu ? "GPUs" : "nodes"}` : "";
  }

  /* Median and band of the lines of each curve; of a job's curves, the server makes them. */
  function banded(found) {
    return [...new Set(found.map((each) => each.metric))].map((metric) => {
      const lines = found.filter((each) => each.metric === metric);
      const times = new Map();
      for (const point of lines.flatMap((each) => each.points)) times.set(point.time, [...(times.get(point.time) || []), point.mean]);
      const points = [...times].sort((a, b) => a[0] - b[0]).map(([time, values]) => {
        values.sort((a, b) => a - b);
        return { time, min: values[0], mean: values[values.length >> 1], max: values.at(-1) };
      });
      return { ...lines[0], line: "median", points };
    });
  }

  function addTools(figure, plots, target, many) {
    if (figure.querySelector(".tools")) return;
    const bar = document.createElement("p");
    bar.className = "tools";
    const button = (text, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.className = "quiet";
      made.textContent = text;
      made.addEventListener("click", () => act(made));
      bar.append(made);
    };
    if (many) {
      button(`Each of ${many}`, (made) => {
        figure.dataset.each = figure.dataset.each ? "" : "yes";
        delete figure.dataset.node;
        made.textContent = figure.dataset.each ? "Median and band" : `Each of ${many}`;
        show(figure);
      });
    }
    const name = `${plots.dataset.name}-${figure.dataset.curves.split(" ")[0]}`;
    button("PNG", () => {
      const heat = target.querySelector("canvas.heat");
      if (!heat) return void Plotly.downloadImage(target, { format: "png", width: 1200, height: 500, filename: name });
      const link = document.createElement("a");
      link.href = heat.toDataURL("image/png");
      link.download = `${name}.png`;
      link.click();
    });
    figure.append(bar);
  }

  /* If there are more lines than distinguishable colours, draw rows; the lines of one node are drawn as lines. */
  const COLOURED = 16;
  async function drawRows(figure, plots, many) {
    const { api } = plots.dataset;
    const found = await fetchSeries(api, [figure.dataset.curves.split(" ")[0]], { points: 120 });
    if (!found.length) return void markUnmeasured(figure);
    const target = figure.querySelector(".drawing");
    Plotly.purge(target);
    delete target.dataset.linked;
    const pick = (node) => { figure.dataset.node = node; show(figure); };
    const label = `A row for each of ${many}, darker where there is more; the table of statistics has the numbers`;
    const clock = (time) => wall(time).replace("T", " ").slice(0, 16);
    const top = window.batchjobHeat.draw(target, found, { write, label, clock, pick });
    figure.querySelector(".told").textContent = `Each row is one of ${many}; the darkest is ${write(found[0].unit, top)}. Choose a node to see its lines.`;
    addTools(figure, plots, target, many);
    addNodeChooser(figure, [...new Set(found.map((each) => each.node))].sort(), pick);
  }

  function addNodeChooser(figure, nodes, pick) {
    const bar = figure.querySelector(".tools");
    if (bar.querySelector("select")) return;
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.append(new Option("all nodes", ""), ...nodes.map((node) => new Option(node, node)));
    select.addEventListener("change", () => pick(select.value));
    label.append("Node ", select);
    bar.append(label);
  }

  /* Shade consecutive steps alternately. */
  function stepShapes(plots) {
    const steps = JSON.parse(plots.dataset.steps || "[]");
    return steps.map(([name, since, till], i) => ({
      type: "rect", layer: "below", xref: "x", yref: "paper", x0: wall(since * 1000), x1: wall(till ? till * 1000 : until(plots)), y0: 0, y1: 1,
      line: { width: 0 }, fillcolor: css("--main"), opacity: i % 2 ? 0.04 : 0.12,
      label: { text: escaped(name), textposition: "bottom left", font: { size: 10, color: css("--soft") } },
    }));
  }

  /* Shaded areas have a dotted edge, for colour-blind readers and black-and-white printers. */
  function zoneShapes(shades, unit, top, showlegend) {
    return shades.map((zone) => ({
      type: "rect", layer: "below", xref: "paper", x0: 0, x1: 1, yref: "y",
      y0: zone.side === "below" ? 0 : zone.value, y1: zone.side === "below" ? Math.min(zone.value, top * 1.06) : top * 1.06,
      name: zoneNamed(zone, unit), showlegend, opacity: (dark.matches ? 0.28 : 0.2) * (zone.side === "below" ? 1 : 0.7),
      fillcolor: css(zone.side === "below" ? "--low" : "--high"), line: { color: css("--text"), width: 1, dash: "dot" },
    }));
  }

  const NARROW = 420; // pixels: on narrower plots and beside many lines, a legend of the zones, which the text below names too, would take half of the plot
  function plotLayout(found, bounds, plots, figure) {
    const unit = found[0].unit;
    const peak = Number(figure.dataset.peak || 0); // of a node, recorded by the kernel: samples may miss it
    const seen = Math.max(highest(found), peak);
    const near = bounds.filter((value) => value <= Math.max(seen, 1e-12) * 12);
    const most = Math.max(seen, ...near, unit === "ratio" && !bounds.length ? 0.1 : 0);
    const top = most > 1e-6 ? most : 1; // less is an error of arithmetic: nothing was used
    const narrow = figure.clientWidth < NARROW;
    const times = { type: "date", range: zoomFromUrl() || fullRange(plots), title: undefined, nticks: narrow ? 4 : 8, tickangle: 0 };
    const style = layout(unit, top, times);
    const limitLines = near.map((value) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: css("--low"), width: 1.2, dash: "dash" } }));
    const shades = zones(figure, bounds).filter((zone) => zone.side === "below" || zone.value < top);
    const peakLines = peak ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: peak, y1: peak, line: { color: css("--soft"), width: 1, dash: "dot" } }] : [];
    style.shapes = [...stepShapes(plots), ...zoneShapes(shades, unit, top, !narrow && found.length <= 2), ...limitLines, ...peakLines];
    style.annotations = near.slice(0, 1).map((value) => ({ xref: "paper", x: 1, y: value, xanchor: "right", yanchor: "bottom", text: `limit ${write(unit, value)}`, showarrow: false, font: { color: css("--bad-text"), size: 11 } }));
    if (peak) style.annotations.push({ xref: "paper", x: 0, y: peak, xanchor: "left", yanchor: "bottom", text: `peak ${write(unit, peak)}`, showarrow: false, font: { color: css("--soft"), size: 11 } });
    style.showlegend = found.length > 1 || (shades.length > 0 && !narrow);
    if (found.length > 6) {
      style.legend = { ...style.legend, orientation: "v", x: 1.01, y: 1, xanchor: "left", yanchor: "top" };
    }
    return style;
  }

  async function draw(figure, plots) {
    const { api } = plots.dataset;
    const curves = figure.dataset.curves.split(" ");
    const asked = figure.dataset.limit ? [...curves, figure.dataset.limit] : curves;
    const { node } = figure.dataset;
    let many = manyLabel(figure, plots);
    if (figure.dataset.each && parseInt(many, 10) > COLOURED && !node) return void await drawRows(figure, plots, many);
    const all = await fetchSeries(api, asked, { aggregate: Boolean(many) && !figure.dataset.each, node });
    let found = all.filter((each) => curves.includes(each.metric));
    if (!found.length) return void markUnmeasured(figure);
    many ||= manyLabel(figure, plots, found);
    const aggregate = figure.dataset.each ? "" : many;
    if (aggregate && plots.dataset.whole) found = banded(found);
    markMeasured(figure);
    const bounds = limits(figure, all.filter((each) => each.metric === figure.dataset.limit));
    const target = figure.querySelector(".drawing");
    target.querySelector("canvas.heat")?.remove();
    const style = plotLayout(found, bounds, plots, figure);
    await Plotly.react(target, traces(found, curves.length > 1), style, CONFIG);
    describePlot(figure, found, bounds, style.shapes.filter((shape) => shape.name).map((shape) => shape.name), aggregate);
    addTools(figure, plots, target, many);
    if (!target.dataset.linked) {
      target.dataset.linked = "yes";
      target.on("plotly_relayout", (change) => zoomTogether(plots, target, change));
    }
  }

  /* Zoom all plots of a job together. */
  let moving = false;
  function zoomTogether(plots, from, change) {
    const range = change["xaxis.range[0]"] !== undefined ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null;
    if (moving || (range === null && !change["xaxis.autorange"])) return;
    moving = true;
    storeZoomInUrl(range);
    const others = [...plots.querySelectorAll(".drawing")].filter((each) => each.dataset.linked && (each !== from || range === null));
    Promise.all(others.map((each) => Plotly.relayout(each, { "xaxis.range": range || fullRange(plots) }))).finally(() => { moving = false; });
  }

  /* The same with buttons, for keyboards and touch: `scale` of the shown time, and `shift` in parts of it. */
  async function zoomBy(plots, scale, shift) {
    const whole = [plots.dataset.since * 1000, until(plots)];
    const [begin, end] = (zoomFromUrl() || fullRange(plots)).map(epoch);
    const length = Math.min((end - begin) * scale, whole[1] - whole[0]);
    const middle = (begin + end) / 2 + shift * length;
    const from = Math.min(Math.max(middle - length / 2, whole[0]), whole[1] - length);
    const range = length < whole[1] - whole[0] ? [wall(from), wall(from + length)] : null;
    storeZoomInUrl(range);
    moving = true;
    const drawn = [...plots.querySelectorAll(".drawing")].filter((each) => each.dataset.linked);
    await Promise.all(drawn.map((each) => Plotly.relayout(each, { "xaxis.range": range || fullRange(plots) })));
    moving = false;
  }

  function addZoomButtons(plots) {
    const bar = document.createElement("p");
    bar.className = "tools zoom";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "Time shown by all plots");
    for (const [text, scale, shift] of [["Zoom in", 0.5, 0], ["Zoom out", 2, 0], ["Earlier", 1, -0.5], ["Later", 1, 0.5]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet";
      button.textContent = text;
      button.addEventListener("click", () => zoomBy(plots, scale, shift));
      bar.append(button);
    }
    plots.before(bar);
  }

  /* Title of the plot, with the name of the curve if it has several. */
  function measurementTitle(figure, metric) {
    const title = figure.querySelector("figcaption").textContent;
    const several = figure.dataset.curves.includes(" ");
    return several ? `${title}: ${WORDS[metric] || metric.replaceAll("_", " ")}` : title;
  }

  /* With one point per line, the API returns statistics over the whole time; one request per family of curves. */
  async function statistics(section) {
    const plots = document.querySelector(".plots");
    const body = section.querySelector("tbody");
    const cell = (row, text, raw) => {
      const made = row.insertCell();
      made.textContent = text;
      if (raw !== undefined) { made.dataset.value = raw; made.className = "n"; }
    };
    for (const figure of plots.querySelectorAll("figure.plot")) {
      for (const each of await fetchSeries(plots.dataset.api, figure.dataset.curves.split(" "), { points: 1 })) {
        const [point] = each.points;
        const row = body.insertRow();
        cell(row, measurementTitle(figure, each.metric));
        cell(row, each.line || "job");
        for (const what of ["min", "mean", "max"]) cell(row, write(each.unit, point[what]), point[what]);
      }
    }
    section.hidden = !body.rows.length;
    document.dispatchEvent(new Event("batchjob:tables"));
  }

  async function drawCompared(figure, plots) {
    const jobs = [...plots.querySelectorAll(".job")];
    let unit = "", top = 0;
    const made = await Promise.all(jobs.map(async (job, i) => {
      const found = await fetchSeries(job.dataset.api, [figure.dataset.curves]);
      const sums = new Map();
      for (const each of found) {
        unit = each.unit;
        for (const point of each.points) {
          const sum = sums.get(point.time) || { value: 0, count: 0 };
          sums.set(point.time, { value: sum.value + point.mean, count: sum.count + 1 });
        }
      }
      const points = [...sums].sort((a, b) => a[0] - b[0]).map(([time, sum]) => [time, found[0].unit === "ratio" ? sum.value / sum.count : sum.value]);
      top = Math.max(top, ...points.map((point) => point[1]));
      return {
        x: points.map(([time]) => (time / 1000 - job.dataset.since) / 3600), y: points.map((point) => point[1]), name: escaped(job.dataset.name),
        mode: "lines", line: { color: colourOf(i, jobs.length), width: 1.6 }, text: points.map((point) => write(unit, point[1])), hovertemplate: "%{text}<extra>%{fullData.name}</extra>",
      };
    }));
    if (!made.some((each) => each.x.length)) return void markUnmeasured(figure);
    markMeasured(figure);
    const style = layout(unit, top || 1, { title: { text: "hours since the start" }, rangemode: "tozero" });
    style.showlegend = true;
    style.margin.b = 52;
    await Plotly.react(figure.querySelector(".drawing"), made.filter((each) => each.x.length), style, CONFIG);
    figure.querySelector(".told").textContent = `Highest ${write(unit, top)}.`;
  }

  function showMessage(figure, words) {
    figure.classList.add("nothing");
    figure.querySelector(".told").textContent = words;
  }

  /* Plots without measurements take no space: one line below the others lists them. */
  function markUnmeasured(figure) {
    showMessage(figure, "Not measured.");
    figure.classList.add("unmeasured");
    listUnmeasured(figure.closest(".plots"));
  }

  function listUnmeasured(plots) {
    const titles = [...plots.querySelectorAll(".unmeasured figcaption")].map((each) => each.textContent);
    const whose = plots.classList.contains("compared") ? "these jobs" : plots.dataset.whole ? "this node" : "this job";
    let told = plots.nextElementSibling;
    if (!told?.matches(".also")) {
      told = document.createElement("p");
      told.className = "also hint";
      plots.after(told);
    }
    told.hidden = !titles.length;
    const gone = plots.dataset.measured && titles.length === plots.querySelectorAll("figure").length;
    told.textContent = gone
      ? "The job was measured, but its measurements over time are no longer kept."
      : `Not measured for ${whose}: ${titles.join(", ")}.`;
  }

  function markMeasured(figure) {
    figure.classList.remove("nothing", "unmeasured");
    listUnmeasured(figure.closest(".plots"));
  }

  function show(figure) {
    const plots = figure.closest(".plots");
    const how = plots.classList.contains("compared") ? drawCompared : draw;
    figure.querySelector(".told").textContent ||= "Loading the measurements …";
    return how(figure, plots).catch((error) => showMessage(figure, `Cannot be drawn: ${error.message}`));
  }

  const figures = [...document.querySelectorAll("figure.plot")];
  if (typeof Plotly === "undefined") {
    figures.forEach((figure) => showMessage(figure, "Plots need the Python package plotly on the server."));
    return;
  }
  document.querySelectorAll("section > .plots[data-until]").forEach(addZoomButtons);
  const seen = new Map();
  const showOnce = (figure) => {
    if (!seen.has(figure)) seen.set(figure, show(figure));
    return seen.get(figure);
  };
  const redrawAll = () => seen.forEach((_, figure) => show(figure));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) showOnce(entry.target);
  }, { rootMargin: "300px" });
  figures.forEach((figure) => watch.observe(figure));
  const table = document.getElementById("statistics");
  /* The margin at the top also counts the end of the plots when a jump has passed it. */
  if (table) new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    statistics(table).catch((error) => {
      table.querySelector(".scroll").replaceChildren(`Cannot be shown: ${error.message}`);
      table.hidden = false;
    });
  }, { rootMargin: "1000000px 0px 300px" }).observe(document.querySelector(".plots-end"));

  /* Browsers print without waiting, so draw the plots before printing. */
  async function printAll() {
    await Promise.all(figures.map(showOnce));
    print();
  }
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "p") {
      event.preventDefault();
      printAll();
    }
  });
  document.getElementById("print")?.addEventListener("click", printAll);
  addEventListener("beforeprint", () => figures.forEach(showOnce));

  let redrawTime = Date.now();
  document.addEventListener("batchjob:renewed", () => {
    if (!document.querySelector(".plots[data-running]") || Date.now() - redrawTime < 25_000) return;
    redrawTime = Date.now();
    redrawAll();
  });
  document.addEventListener("batchjob:zone", redrawAll);
  dark.addEventListener("change", redrawAll);
})();
