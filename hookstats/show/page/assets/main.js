// The state of the page, and who redraws when the state changes.

let data;
const chosen = {
  kind: null, statistic: null, relative: null, before: null, site: 0, group: null, column: 0, alert: null,
  beside: "a", other: 0, pins: new Set(), view: null, query: "", folds: new Map(),
};

const charts = [];
const chartOf = (id) => charts.find((chart) => chart.canvas.id === id);
let heatmap, curves;

function sitesOf(kind) {
  data.ofKind ??= new Map();
  if (!data.ofKind.has(kind)) data.ofKind.set(kind, data.sites.flatMap((site, s) => (site.plain === kind ? [s] : [])));
  return data.ofKind.get(kind);
}

async function start(unpacked) {
  take(unpacked);
  byId("main").hidden = false;
  const zoom = (from, to) => zoomTo(from ?? 0, to ?? data.columns);
  const toColumn = (column) => choose({ column: clamp(column, data.columns) });
  heatmap = new Heatmap(byId("heatmap"), byId("heatmap-axis"), {
    choose: (r, column, byKey) => {
      const { site, group } = view.rows[clamp(r, view.rows.length)] ?? { site: chosen.site, group: null };
      choose({ site: group === null ? site : heatmap.striking(view.rows[clamp(r, view.rows.length)], clamp(column, data.columns)), group, column: clamp(column, data.columns) });
      if (byKey) heatmap.reveal(true);
    },
    hover: (cell, event) => tip(cell && describeRow(view.rows[cell[0]], cell[1]), event),
    fold: (r) => fold(view.rows[r]),
    enter: () => byId("detail").focus(),
    zoom,
  });
  curves = new Curves(byId("curves"), {
    choose: toColumn,
    hover: (column, event) => tip(column !== null && [stepsOf(data.spans[column]), ...describeIncidents(data, column), ...describeCurves(data, column)].join("\n"), event),
    zoom,
  });
  const common = { choose: toColumn, zoom, tip };
  charts.push(
    new Chart(byId("histogram"), { paint: paintHistogram, describe: describeHistogram, right: 76, ...common }),
    new Chart(byId("quantiles"), { paint: paintQuantiles, describe: describeQuantiles, right: 54, ...common }),
    new Chart(byId("channels"), { paint: paintChannels, describe: describeChannels, right: 76, ...common }),
  );
  timeAxis(byId("canvas-lines"), { plot: () => (linesPlot.ready ? linesPlot : null), zoom, choose: toColumn });
  register("overview", "Layers by steps", {
    canvases: () => [pictureOf(byId("legend")), byId("curves"), byId("heatmap").querySelector("canvas"), byId("heatmap-axis")],
    rows: heatmapRows,
    of: () => chosen.shown.label + (view.relative ? " against " + usualText() : ""),
  });
  const of = () => layerText(chosen.site);
  register("detail", "Numbers", { canvases: () => [pictureOf(byId("tiles"))], rows: () => tileRows(data, chosen.site), of });
  register("histogram", "Histogram over steps", { canvases: () => [byId("histogram")], rows: () => histogramRows(data, chosen.site), of });
  register("quantiles", "Quantiles over steps", { canvases: () => [byId("quantiles")], rows: () => quantileRows(data, chosen.site), of });
  register("channels", "Channels over steps", { canvases: () => [byId("channels")], rows: () => channelRows(data, chosen.site), of });
  register("alerts", "Incidents", { canvases: () => [pictureOf(byId("alert-list"))], rows: incidentRows, overall: true });
  register("coverage", "Coverage", { canvases: () => [pictureOf(byId("coverage-body"))], rows: coverageRows, overall: true });
  register("about", "The run", { canvases: () => [pictureOf(byId("facts"))], rows: factRows, overall: true });
  setUpViews();
  setUpFlow();
  listen();
  const first = { kind: kinds()[0], site: sitesOf(kinds()[0])[0], column: data.columns - 1 };
  chosen.statistic = data.statistics[0];
  if (data.b && !data.ofRanks) chosen.beside = "ratio";
  Object.assign(chosen, first);
  showStatistics();
  const linked = readLink();
  if (linked) choose({ ...linked, group: null });
  else if (data.differ) goTo({ site: data.differ.site, column: nearestColumn(data.differ.step) });
  else if (data.alerts.length) goToAlert(data.incidents[0].alerts[0]);
  else choose(first);
  await frame();
  const main = byId("main");
  main.dataset.first = performance.now().toFixed(1); // what benchmarks read
  if (!linked) await data.rest();
  whole = true;
  draw(true);
  const shown = panels.has(linked?.view) && document.querySelector(`[data-tools="${linked.view}"]`);
  if (shown) shown.scrollIntoView({ block: "nearest" });
  let wide = main.clientWidth;
  new ResizeObserver(() => {
    if (main.clientWidth === wide) return;
    wide = main.clientWidth;
    draw(true);
  }).observe(main);
  main.dataset.whole = performance.now().toFixed(1);
  foresee();
}

let whole = false; // until all numbers are there, the page shows the heatmap alone, as it was first

// Kept once the screen shows what was drawn; a page that no screen shows has no frames.
function frame() {
  return new Promise((kept) => (document.hidden ? setTimeout(kept) : requestAnimationFrame(() => setTimeout(kept))));
}

// Data that the page did not have before: at the start, and when steps come.
function take(unpacked) {
  const first = data && range.from > 0 ? data.spans[range.from][0] : null;
  const last = data && range.to < data.columns ? data.spans[range.to - 1][1] : null;
  data = unpacked;
  data.b = data.others[chosen.other] ?? null;
  // The same steps are shown, whichever columns have them now.
  Object.assign(range, { from: first === null ? 0 : nearestColumn(first), to: last === null ? data.columns : nearestColumn(last) + 1 });
  lately.length = 0;
  for (const [name, stops] of Object.entries(data.palettes)) PALETTES[name] = palette(stops);
  showKinds();
  showBeside();
  showRun(data);
  showCoverage(data);
  showAlerts(data, goToAlert);
}

function listen() {
  byId("statistic").addEventListener("change", (e) => choose({ statistic: offered().find(({ id }) => id === e.target.value), relative: null }));
  byId("relative").addEventListener("change", (e) => choose({ relative: e.target.checked }));
  byId("others").addEventListener("change", (e) => choose({ other: Number(e.target.value), beside: chosen.beside === "a" ? "b" : chosen.beside, relative: null }));
  byId("search").addEventListener("input", (e) => choose({ query: e.target.value }));
  byId("unzoom").addEventListener("click", () => zoomTo(0, data.columns));
  byId("unfade").addEventListener("click", () => choose({ alert: null }));
  byId("pin").addEventListener("click", () => togglePin(chosen.site));
  byId("ridges").addEventListener("click", () => {
    const chart = chartOf("histogram");
    chart.ridges = !chart.ridges;
    draw();
  });
  for (const name of ["smooth", "log"]) {
    byId(name).addEventListener("click", () => {
      curves[name] = !curves[name];
      byId(name).setAttribute("aria-pressed", String(curves[name]));
      draw(true);
    });
  }
  byId("earlier").addEventListener("click", () => choose({ column: clamp(chosen.column - 1, data.columns) }));
  byId("later").addEventListener("click", () => choose({ column: clamp(chosen.column + 1, data.columns) }));
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.("select, input[type=search]")) return;
    const key = e.key.toLowerCase();
    const alerts = data.alerts.length;
    if (key === "n" && alerts) goToAlert(((chosen.alert ?? -1) + (e.shiftKey ? alerts - 1 : 1)) % alerts);
    else if (key === "p") togglePin(chosen.site);
    else if (key === "z" || e.key === "+") zoomBy(0.5);
    else if (key === "x" || e.key === "-") zoomBy(2);
    else if (key === "0") zoomTo(0, data.columns);
    else if (key === "/") byId("search").focus();
    else return;
    e.preventDefault();
  });
  document.addEventListener("themechange", () => draw(true));
  addEventListener("hashchange", () => {
    const linked = readLink();
    if (linked) choose({ group: null, ...linked }, true);
  });
}

const clamp = (i, count) => Math.max(0, Math.min(count - 1, i));
const kinds = () => [...new Set(data.sites.map((site) => site.plain))].sort((a, b) => KINDS.indexOf(a) - KINDS.indexOf(b));
const KINDS = ["output", "grad_output", "input", "grad_input", "param", "param_grad", "update", "optimizer_state", "attention", "choices", "checksum"];

function zoomTo(from, to) {
  range.from = clamp(from, data.columns);
  range.to = Math.max(range.from + 1, Math.min(to, data.columns));
  draw(true);
}

// Around the chosen step, as far as there are steps.
function zoomBy(factor) {
  const wide = Math.round(Math.min(Math.max(4, (range.to - range.from) * factor), data.columns));
  const from = Math.max(0, Math.min(chosen.column - Math.floor(wide / 2), data.columns - wide));
  zoomTo(from, from + wide);
}

function fold(row) {
  const folds = new Map(chosen.folds).set(row.group, !row.open);
  choose({ folds, group: row.group });
}

function showKinds() {
  byId("kinds").replaceChildren(...kinds().map((kind) => {
    const input = element("input", { type: "radio", name: "kind", value: kind });
    input.addEventListener("change", () => choose({ kind, site: counterpart(kind), group: null }));
    return element("label", {}, input, kind);
  }));
}

function showBeside() {
  byId("beside").hidden = byId("dashes").hidden = !data.b;
  if (!data.b) return;
  const names = besideNames();
  byId("beside").replaceChildren(...["a", "b", "ratio"].map((value) => {
    const input = element("input", { type: "radio", name: "beside", value });
    input.addEventListener("change", () => choose({ beside: value, relative: null }));
    return element("label", {}, input, names[value]);
  }));
  byId("dashes").textContent = `solid: ${names.a}, dashed: ${names.b}`;
  byId("others").parentElement.hidden = data.others.length < 2;
  byId("others").replaceChildren(...data.others.map(({ name }, n) => element("option", { value: n }, name)));
  byId("others").value = chosen.other;
}

function showStatistics() {
  const all = offered();
  if (!all.includes(chosen.statistic)) chosen.statistic = all.find(({ id }) => id === chosen.statistic.id) ?? all[0];
  byId("statistic").replaceChildren(...all.map(({ id, label }) => element("option", { value: id }, label)));
  byId("statistic").value = chosen.statistic.id;
}

// The site of another kind that belongs to the same layer, or else the nearest one.
function counterpart(kind) {
  const rows = sitesOf(kind);
  const owner = ({ name, plain }) => (plain.startsWith("param") || plain === "update" ? name.slice(0, Math.max(0, name.lastIndexOf("."))) : name);
  const now = data.sites[chosen.site];
  const same = (test) => rows.find((s) => test(data.sites[s]));
  return same((site) => site.name === now.name && site.phase === now.phase) ?? same((site) => site.name === now.name) ?? same((site) => owner(site) === owner(now)) ??
    rows.reduce((best, s) => (Math.abs(s - chosen.site) < Math.abs(best - chosen.site) ? s : best), rows[0]);
}

// The column of a step; -1 where no column has it.
function columnOf(step) {
  const low = lastWhere(data.columns - 1, (t) => t === 0 || data.spans[t - 1][1] < step);
  return data.spans[low][0] <= step && step <= data.spans[low][1] ? low : -1;
}

// The column where an alert began, or where it was noticed if that is not recorded.
const beginOf = ({ since, step }) => (columnOf(since) < 0 ? nearestColumn(step) : columnOf(since));

// The column of a step, or the first one after it: alerts about numbers may be of other steps.
function nearestColumn(step) {
  const after = data.spans.findIndex(([, last]) => last >= step);
  return after < 0 ? data.columns - 1 : after;
}

// Where the heatmap gets a mark: { row, column, severity }.
function alertsOf(rows) {
  return data.alerts.filter(({ site, step }) => site !== null && columnOf(step) >= 0)
    .map((alert) => ({ row: rowOf(rows, alert.site), column: beginOf(alert), severity: alert.severity }))
    .filter(({ row }) => row >= 0);
}

// What is wrong from the start has no past to differ from: it shows against the other layers.
const EARLY = 3; // columns

// An incident chooses what is shown: its tensor, the step where it began, the statistic that its rule looks at, and
// what that is compared with; other layers are faded. A number of the training has no layer: the one
// that differs most in its step is shown.
function goToAlert(n) {
  const alert = data.alerts[n];
  const [column, since] = [beginOf(alert), nearestColumn(alert.since)];
  const early = since < EARLY;
  const site = alert.site ?? chosen.site;
  const { plain } = data.sites[site];
  const statistic = offered(plain).find(({ id }) => id === alert.statistic) ?? data.statistics[0];
  const beside = data.b && !data.ofRanks ? { beside: alert.beside ? "b" : "a" } : {};
  const peers = early && statistic.scale === "log" && sitesOf(plain).length > 1;
  const compared = alert.isSize && (peers || !early);
  goTo({ site, column, alert: n, statistic, relative: compared ? null : false, before: !compared ? null : peers ? PEERS : since, ...beside });
  if (alert.site === null && !early) {
    choose({ site: heatmap.striking({ sites: sitesOf(chosen.kind) }, column), alert: n });
    heatmap.reveal();
  }
  document.querySelector(`[data-alert="${n}"]`)?.scrollIntoView({ block: "nearest" });
}

// Chooses a layer and a step, and shows them wherever they are: folded, outside the zoom, not found.
function goTo(changes) {
  const site = data.sites[changes.site];
  const folds = new Map(chosen.folds);
  for (const group of groupsOf(site.name)) folds.set(group, true);
  const outside = changes.column < range.from || changes.column >= range.to;
  if (outside) Object.assign(range, { from: 0, to: data.columns });
  const hidden = chosen.query && rowOf(view?.rows ?? [], changes.site) < 0;
  if (hidden) byId("search").value = "";
  choose({ kind: site.plain, group: null, folds, ...(hidden ? { query: "" } : {}), ...changes }, outside);
  heatmap.reveal();
}

function choose(changes, anew = false) {
  if (!("alert" in changes) && ("site" in changes || "column" in changes)) changes.alert = null;
  const before = { ...chosen };
  Object.assign(chosen, changes);
  if (before.kind !== chosen.kind || before.statistic !== chosen.statistic) showStatistics();
  if (before.other !== chosen.other) {
    data.b = data.others[chosen.other];
    showBeside();
  }
  const differ = (names) => names.some((name) => before[name] !== chosen[name]);
  draw(anew || !view || differ(["kind", "statistic", "relative", "before", "beside", "other", "query", "folds", "alert"]));
  if (whole && differ(["kind", "beside", "other"])) foresee();
}

let view;

// What was shown lately is at hand: to go there and back costs no more than to draw. So is what may be
// chosen next, of the kind that is shown.
const MOST_REMEMBERED = 24;
const lately = []; // { key, found }

function remembered(key, make) {
  const at = lately.findIndex((one) => one.key.every((part, k) => part === key[k]));
  const one = at >= 0 ? lately.splice(at, 1)[0] : { key, found: make() };
  lately.unshift(one);
  lately.length = Math.min(lately.length, MOST_REMEMBERED);
  return one.found;
}

function viewOf() {
  chosen.shown = besideOf(chosen.statistic);
  const rows = rowsOf(data, sitesOf(chosen.kind), chosen.folds, chosen.query);
  const lit = chosen.alert === null ? null : data.alerts[chosen.alert].site;
  return { data, rows, lit: lit === null ? -1 : rowOf(rows, lit), none: `no layer matches “${chosen.query}”`, alerts: alertsOf(rows), statistic: chosen.shown, ...numbersOf(chosen.statistic, chosen.relative) };
}

const shownData = () => [data, chosen.kind, chosen.beside, chosen.other];

// wanted: whether against medians; null: where the statistic has them.
function numbersOf(statistic, wanted) {
  const [sites, shown] = [sitesOf(chosen.kind), besideOf(statistic)];
  const relative = shown.scale === "log" && shown !== OF_WEIGHT && wanted !== false;
  const key = [...shownData(), statistic, relative, chosen.before];
  return { relative, ...remembered(key, () => valuesOf(data, sites, shown, relative, chosen.before)) };
}

// What a layer is compared with, in words.
const usualText = () => (chosen.before === PEERS ? "the median of all layers" : "each layer’s median" + (chosen.before === null ? "" : ` before step ${data.spans[chosen.before][0]}`));

const whenIdle = (act) => (window.requestIdleCallback ? requestIdleCallback(act) : setTimeout(act, 100));

// Finds the numbers of what may be chosen next, one statistic at a time, where nothing else is to be done.
function foresee() {
  const begun = shownData();
  const next = [[chosen.statistic, !view.relative], ...offered().map((statistic) => [statistic, null])];
  delete byId("main").dataset.ready;
  const find = () => {
    if (shownData().some((part, k) => part !== begun[k])) return;
    if (!next.length) byId("main").dataset.ready = "yes"; // what benchmarks read
    else {
      numbersOf(...next.pop());
      whenIdle(find);
    }
  };
  whenIdle(find);
}

// With `colours`, the picture behind the cursor changed, too.
function draw(colours) {
  if (view && !whole) return;
  const began = performance.now();
  if (colours) {
    view = viewOf();
    byId("statistic").value = chosen.statistic.id;
    byId("relative").disabled = chosen.shown.scale !== "log" || chosen.statistic === OF_WEIGHT;
    byId("relative").checked = Boolean(view.relative);
    byId("usual").textContent = usualText();
    byId("unfade").hidden = view.lit < 0 || view.rows.length < 2;
    showLegend(view);
  }
  const own = view.rows.findIndex((row) => row.group !== null && row.group === chosen.group);
  Object.assign(view, { row: own >= 0 ? own : rowOf(view.rows, chosen.site), column: chosen.column });
  if (colours) heatmap.show(view);
  else heatmap.draw();
  curves.show({ data, column: chosen.column, left: heatmap.l.left, plot: heatmap.axisWidth });
  const zoomed = range.from > 0 || range.to < data.columns;
  byId("unzoom").hidden = !zoomed;
  if (zoomed) byId("zoomed").textContent = `steps ${data.spans[range.from][0]}–${data.spans[range.to - 1][1]}`;
  byId("logged").textContent = describeCurves(data, chosen.column).join(" · ");
  for (const input of document.querySelectorAll("#beside input")) input.checked = input.value === chosen.beside;
  for (const input of document.querySelectorAll("#kinds input")) input.checked = input.value === chosen.kind;
  const said = describeCell(chosen.site, chosen.column);
  const [first, ...rest] = said.split("\n");
  byId("readout").replaceChildren(element("b", {}, first), " ", rest.join(" · "));
  byId("live").textContent = said.replaceAll("\n", ", ");
  markAlert(chosen.alert);
  byId("main").dataset.striking = data.sites[heatmap.striking({ sites: sitesOf(chosen.kind) }, chosen.column)].name; // what tests read
  if (!whole) return;
  drawDetail();
  drawViews({ data, column: chosen.column });
  writeLinkSoon();
  byId("main").dataset.drawn = (performance.now() - began).toFixed(1);
}

function drawDetail() {
  const s = chosen.site;
  const site = data.sites[s];
  const span = data.spans[chosen.column];
  byId("detail-title").textContent = label(site);
  Object.assign(byId("detail").dataset, { layer: site.name, kind: site.kind }); // what tests read
  const dim = site.channelDim === null ? "one channel" : `${plural(site.channels, "channel")} in dimension ${site.channelDim}`;
  byId("detail-about").textContent = [site.phase, site.plain, site.module, `${site.dtype} [${site.shape.join(", ")}]`, dim].filter(Boolean).join(" · ");
  byId("when").textContent = stepsOf(span) + (span[2] > 1 ? ` (${span[2]} merged)` : "");
  byId("earlier").disabled = chosen.column === 0;
  byId("later").disabled = chosen.column === data.columns - 1;
  byId("pin").setAttribute("aria-pressed", String(chosen.pins.has(s)));
  showTiles(data, s, chosen.column);
  const ridges = Boolean(chartOf("histogram").ridges);
  byId("ridges").setAttribute("aria-pressed", String(ridges));
  byId("histogram-note").textContent = !site.axis ? "" : ridges ? "each curve as high as its peak" : "share of values (log)";
  byId("channels-note").textContent = !site.image ? "" : site.deadLast ? `rms; dead at the end: ${site.deadLast}` : "rms; none dead at the end";
  for (const chart of charts) chart.show({ data, s, column: chosen.column });
}

function describeCell(s, column) {
  const site = data.sites[s];
  const i = s * data.columns + column;
  const statistic = chosen.shown;
  const width = widthOf(site.name);
  const lines = [`${label(site)} ${site.plain}`, ...(width ? [width] : []), stepsOf(data.spans[column])];
  const unseen = sources().find((d) => !d.seen[i]);
  if (unseen) return [...lines, unseenText(unseen, s, column)].join("\n");
  const x = statistic.of(data, i, site);
  const merged = sources().filter((d) => d.starts[statistic.id]).map((d) => reach(d, statistic.id, column)).sort((one, other) => other[2] - one[2])[0] ?? [0, 0, 1];
  lines.push(`${statistic.label} ${statistic.scale === "ratio" ? "×" : ""}${statistic.scale === "share" ? percent(x) : number(x)}${merged[2] > 1 ? ` of ${stepsOf(merged)}` : ""}`);
  const ratio = x > 0 && view.relative ? Math.log10(x) - usualAt(view.usual.get(s), column) : NaN;
  if (!Number.isNaN(ratio)) lines.push(`${view.scale.text(ratio)} ${chosen.before === PEERS ? "the median of all layers" : "the layer’s median"}`);
  const d = sources().at(-1);
  if (nonfinite(d, i)) lines.push(`${plural(nonfinite(d, i), "value")} not finite`);
  if (deadIsKnown(d, i) && d.dead[i]) lines.push(`${d.dead[i]} of ${plural(channelsOf(d, i), "channel")} dead`);
  return lines.join("\n");
}

function describeRow(row, column) {
  if (row.group === null) return describeCell(row.site, column);
  return `${row.group}: ${plural(row.sites.length, "layer")}, the most striking is\n${describeCell(heatmap.striking(row, column), column)}`;
}

function heatmapRows() {
  const { rows, values } = view;
  const sites = rows.filter((row) => row.group === null || !row.open).flatMap((row) => row.sites);
  const columns = Array.from({ length: range.to - range.from }, (_, t) => range.from + t);
  return [["layer", "kind", "statistic", ...columns.map((t) => stepsOf(data.spans[t]))],
    ...sites.map((s) => [label(data.sites[s]), data.sites[s].plain, chosen.shown.label, ...columns.map((t) => finiteOr(values.get(s)[t]))]),
    ...curveRows(columns)];
}

function tip(text, event) {
  const node = byId("tip");
  node.hidden = !text;
  if (!text) return;
  node.textContent = text;
  const { width, height } = node.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 10 : event.clientX + 14;
  const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16;
  node.style.left = Math.max(4, left) + "px";
  node.style.top = Math.max(4, top) + "px";
}
