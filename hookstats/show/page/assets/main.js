// The state of the page, and who redraws when the state changes.

let data;
const chosen = { kind: null, statistic: null, relative: false, site: 0, column: 0, alert: null };

const charts = [];
let heatmap, curves;

function sitesOf(kind) {
  return data.sites.flatMap((site, s) => (site.plain === kind ? [s] : []));
}

function start(unpacked) {
  data = unpacked;
  chosen.statistic = data.statistics[0];
  for (const [name, stops] of Object.entries(data.palettes)) PALETTES[name] = palette(stops);
  byId("main").hidden = false;
  heatmap = new Heatmap(byId("heatmap"), byId("heatmap-axis"), {
    choose: (row, column, byKey) => {
      const rows = sitesOf(chosen.kind);
      choose({ site: rows[clamp(row, rows.length)], column: clamp(column, data.columns) });
      if (byKey) heatmap.reveal();
    },
    hover: (cell, event) => tip(cell && describeCell(sitesOf(chosen.kind)[cell[0]], cell[1]), event),
    enter: () => byId("detail").focus(),
  });
  curves = new Curves(byId("curves"), {
    choose: (column) => choose({ column }),
    hover: (column, event) => tip(column !== null && [stepsOf(data.spans[column]), ...describeCurves(data, column)].join("\n"), event),
  });
  const common = { choose: (column) => choose({ column: clamp(column, data.columns) }), tip };
  charts.push(
    new Chart(byId("histogram"), { paint: paintHistogram, describe: describeHistogram, right: 76, ...common }),
    new Chart(byId("quantiles"), { paint: paintQuantiles, describe: describeQuantiles, right: 54, ...common }),
    new Chart(byId("channels"), { paint: paintChannels, describe: describeChannels, right: 76, ...common }),
  );
  showKinds();
  showRun(data);
  showCoverage(data);
  showAlerts(data, goToAlert);
  byId("statistic").replaceChildren(...data.statistics.map(({ id, label }) => element("option", { value: id }, label)));
  byId("statistic").addEventListener("change", (e) => {
    choose({ statistic: data.statistics.find(({ id }) => id === e.target.value) });
  });
  byId("relative").addEventListener("change", (e) => choose({ relative: e.target.checked }));
  byId("earlier").addEventListener("click", () => choose({ column: clamp(chosen.column - 1, data.columns) }));
  byId("later").addEventListener("click", () => choose({ column: clamp(chosen.column + 1, data.columns) }));
  document.addEventListener("keydown", (e) => {
    if (e.key.toLowerCase() !== "n" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("select")) return;
    if (data.alerts.length) goToAlert(((chosen.alert ?? -1) + (e.shiftKey ? data.alerts.length - 1 : 1)) % data.alerts.length);
  });
  const redraw = () => draw(true);
  new ResizeObserver(redraw).observe(byId("main"));
  document.addEventListener("themechange", redraw);
  choose({ kind: kinds()[0], site: sitesOf(kinds()[0])[0], column: data.columns - 1 });
  if (data.alerts.length) goToAlert(0);
}

const clamp = (i, count) => Math.max(0, Math.min(count - 1, i));
const kinds = () => [...new Set(data.sites.map((site) => site.plain))].sort((a, b) => KINDS.indexOf(a) - KINDS.indexOf(b));
const KINDS = ["output", "grad_output", "input", "grad_input", "param", "param_grad", "update", "optimizer_state"];

function showKinds() {
  byId("kinds").replaceChildren(...kinds().map((kind) => {
    const input = element("input", { type: "radio", name: "kind", value: kind });
    input.addEventListener("change", () => choose({ kind, site: counterpart(kind) }));
    return element("label", {}, input, kind);
  }));
}

// The site of another kind that belongs to the same layer, or else the nearest one.
function counterpart(kind) {
  const rows = sitesOf(kind);
  const owner = ({ name, plain }) => (plain.startsWith("param") ? name.slice(0, Math.max(0, name.lastIndexOf("."))) : name);
  const now = data.sites[chosen.site];
  const same = (test) => rows.find((s) => test(data.sites[s]));
  return same((site) => site.name === now.name && site.phase === now.phase) ?? same((site) => site.name === now.name) ?? same((site) => owner(site) === owner(now)) ??
    rows.reduce((best, s) => (Math.abs(s - chosen.site) < Math.abs(best - chosen.site) ? s : best), rows[0]);
}

function columnOf(step) {
  return data.spans.findIndex(([first, last]) => first <= step && step <= last);
}

// Where the heatmap of a kind gets a mark: { row, column, severity }.
function alertsOf(kind) {
  const rows = new Map(sitesOf(kind).map((s, row) => [s, row]));
  return data.alerts.map(({ site, step, severity }) => ({ row: rows.get(site), column: columnOf(step), severity }))
    .filter(({ row, column }) => row !== undefined && column >= 0);
}

function goToAlert(n) {
  const alert = data.alerts[n];
  const found = columnOf(alert.step);
  const site = alert.site ?? chosen.site;
  choose({ kind: data.sites[site].plain, site, column: found < 0 ? chosen.column : found, alert: n });
  heatmap.reveal();
  document.querySelector(`[data-alert="${n}"]`)?.scrollIntoView({ block: "nearest" });
}

function choose(changes) {
  if (!("alert" in changes) && ("site" in changes || "column" in changes)) changes.alert = null;
  const before = { ...chosen };
  Object.assign(chosen, changes);
  draw(["kind", "statistic", "relative"].some((name) => before[name] !== chosen[name]));
}

let view;

// With `colours`, the picture behind the cursor changed, too.
function draw(colours) {
  const sites = sitesOf(chosen.kind);
  const signed = chosen.statistic.scale !== "log";
  byId("relative").disabled = signed;
  const relative = chosen.relative && !signed;
  const at = { row: sites.indexOf(chosen.site), column: chosen.column };
  if (colours) {
    view = { data, sites, alerts: alertsOf(chosen.kind), statistic: chosen.statistic, ...valuesOf(data, sites, chosen.statistic, relative), ...at };
    showLegend(view.scale, chosen.statistic, relative, view.alerts.length > 0);
    heatmap.show(view);
  } else {
    Object.assign(view, at);
    heatmap.draw();
  }
  curves.show({ data, column: chosen.column, left: heatmap.l.left, plot: heatmap.l.plot });
  byId("logged").textContent = describeCurves(data, chosen.column).join(" · ");
  for (const input of document.querySelectorAll("#kinds input")) input.checked = input.value === chosen.kind;
  const said = describeCell(chosen.site, chosen.column);
  const [first, ...rest] = said.split("\n");
  byId("readout").replaceChildren(element("b", {}, first), " ", rest.join(" · "));
  byId("live").textContent = said.replaceAll("\n", ", ");
  document.querySelectorAll("[data-alert]").forEach((button, n) => {
    button.setAttribute("aria-current", String(n === chosen.alert));
  });
  drawDetail();
}

function drawDetail() {
  const s = chosen.site;
  const site = data.sites[s];
  const span = data.spans[chosen.column];
  byId("detail-title").textContent = `${label(site)}`;
  const dim = site.channelDim === null ? "one channel" : `${plural(site.channels, "channel")} in dimension ${site.channelDim}`;
  byId("detail-about").textContent = [site.phase, site.plain, site.module, `${site.dtype} [${site.shape.join(", ")}]`, dim].filter(Boolean).join(" · ");
  byId("when").textContent = stepsOf(span) + (span[2] > 1 ? ` (${span[2]} merged)` : "");
  byId("earlier").disabled = chosen.column === 0;
  byId("later").disabled = chosen.column === data.columns - 1;
  showTiles(data, s, chosen.column);
  byId("histogram-note").textContent = site.axis ? "share of values (log)" : "";
  byId("quantiles-note").textContent = "";
  byId("channels-note").textContent = !site.image ? "" : site.deadLast ? `rms; dead at the end: ${site.deadLast}` : "rms; none dead at the end";
  for (const chart of charts) chart.show({ data, s, column: chosen.column });
}

function describeCell(s, column) {
  const site = data.sites[s];
  const i = s * data.columns + column;
  const { statistic } = chosen;
  const width = widthOf(site.name);
  const lines = [`${label(site)} ${site.plain}`, ...(width ? [width] : []), stepsOf(data.spans[column])];
  if (!data.seen[i]) return [...lines, "not recorded"].join("\n");
  const x = statistic.of(data, i, site);
  lines.push(`${statistic.label} ${statistic.scale === "share" ? percent(x) : number(x)}`);
  const ratio = view.ratios?.[view.sites.indexOf(s)]?.[column];
  if (ratio !== undefined && !Number.isNaN(ratio)) lines.push(`${view.scale.text(ratio)} the layer’s median`);
  if (nonfinite(data, i)) lines.push(`${integer(nonfinite(data, i))} values not finite`);
  if (deadIsKnown(data, i, site) && data.dead[i]) lines.push(`${data.dead[i]} of ${plural(site.channels, "channel")} dead`);
  return lines.join("\n");
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

function theme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const button = byId("theme");
  const apply = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "☀ Light" : "☾ Dark";
    button.setAttribute("aria-label", `Switch to the ${dark ? "light" : "dark"} theme`);
    document.dispatchEvent(new Event("themechange"));
  };
  button.addEventListener("click", () => apply(root.dataset.theme !== "dark"));
  system.addEventListener("change", () => apply(system.matches));
  apply(system.matches);
}

theme();
unpack(byId("payload").textContent).then(start).catch((error) => {
  const old = typeof DecompressionStream === "undefined";
  byId("failure").textContent = old
    ? "This page needs a browser of 2023 or later (DecompressionStream)."
    : `This page could not be read: ${error}`;
  byId("failure").hidden = false;
  if (!old) throw error;
});
