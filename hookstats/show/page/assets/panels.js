// The panels of words: tiles of numbers, alerts, coverage, what the run was.

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const byId = (id) => document.getElementById(id);

function showTiles(data, s, column) {
  const site = data.sites[s];
  const i = s * data.columns + column;
  const seen = data.seen[i];
  if (!seen && !data.b?.seen[i]) {
    byId("tiles").replaceChildren(element("div", {}, element("dt", {}, site.plain), element("dd", {}, unseenText(data, s, column))));
    return;
  }
  const bad = ["nan", "posinf", "neginf"]
    .filter((name) => data[name][i] > 0)
    .map((name) => `${integer(data[name][i])} ${{ nan: "NaN", posinf: "+∞", neginf: "−∞" }[name]}`);
  const tiles = [
    ["rms", number(data.rms[i]), "rms"],
    ["mean", number(data.mean[i]), "mean"],
    ["std", number(data.std[i]), "std"],
    ["min", number(data.min[i]), "min"],
    ["max", number(data.max[i]), "max"],
    ["zeros", percent(data.zero[i]), "zero"],
    ["non-finite", bad.join(", ") || "none", "nan", bad.length],
    ["dead channels", site.uneven || Number.isNaN(data.dead[i]) ? "–" : `${data.dead[i]} of ${site.channels}`, "dead", data.dead[i]],
    ["values", integer(data.count[i] + nonfinite(data, i)), "count"],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, text, array, alarm]) => {
    const span = reach(data, array, column);
    const merged = seen && span[2] > 1 ? element("dd", { class: "span", title: "This number merges these steps." }, stepsOf(span)) : null;
    return element("div", { class: seen && alarm ? "bad" : null }, element("dt", {}, name), element("dd", {}, seen ? text : "–"), merged, twin(data, i, array, column));
  }));
}

// The numbers of a layer in all steps that are shown: what its tiles have, and what is set beside.
function tileRows(data, s) {
  const arrays = { rms: "rms", mean: "mean", std: "std", min: "min", max: "max", "share of zeros": "zero", NaNs: "nan", "positive infinities": "posinf", "negative infinities": "neginf", "dead channels": "dead", "finite values": "count" };
  const known = Object.entries(arrays).filter(([, array]) => array !== "dead" || !data.sites[s].uneven);
  const cells = [[data, ""], ...(data.b ? [[data.b, besideNames().short + " "]] : [])].flatMap(([d, of]) => known.flatMap(([name, array]) => [
    [of + name, (t) => (d.seen[s * data.columns + t] ? finiteOr(d[array][s * data.columns + t]) : null)],
    ...(d.starts[array] ? [[`${of}${name} is of`, (t) => stepsOf(reach(d, array, t))]] : []),
  ]));
  const columns = Array.from({ length: range.to - range.from }, (_, k) => range.from + k);
  return [["steps", ...cells.map(([name]) => name)], ...columns.map((t) => [stepsOf(data.spans[t]), ...cells.map(([, cell]) => cell(t))])];
}

// The number of what is set beside.
function twin(data, i, array, column) {
  if (!data.b || array === "nan") return null;
  const [x, span] = [data.b[array][i], reach(data.b, array, column)];
  const text = !data.b.seen[i] ? "–" : array === "zero" ? percent(x) : ["count", "dead"].includes(array) && !Number.isNaN(x) ? integer(x) : number(x);
  return element("dd", { class: "span" }, `${besideNames().short} ${text}${span[2] > 1 ? `, ${stepsOf(span)}` : ""}`);
}

function showLegend({ scale, special, alerts }) {
  const bar = element("canvas", { width: 1, height: 1, role: "img",
    "aria-label": `Colours from ${scale.text(Math.min(...scale.ticks))} to ${scale.text(Math.max(...scale.ticks))}` });
  const words = { none: "zero", nonfinite: "not finite", absent: "no gradient", missing: "not recorded" };
  const swatches = special.map((name) => element("span", { class: "swatch" }, element("i", { class: name }), words[name]));
  const marks = Object.entries(MARKS).filter(([severity]) => alerts.some((alert) => alert.severity === severity))
    .map(([severity, [mark, word]]) => element("span", { class: "swatch" }, element("span", { class: severity }, mark), word.toLowerCase()));
  byId("legend").replaceChildren(bar, ...swatches, ...marks);
  const width = Math.min(300, byId("legend").clientWidth);
  bar.style.width = width + "px";
  const { context } = fit(bar, 30);
  const inset = 18;
  const room = width - 2 * inset;
  for (let x = 0; x < room; x++) {
    // Where the least share jumps from none, none has some pixels.
    const at = scale.place ? scale.at(Math.max(0, x - 6) / (room - 7)) : x / (room - 1);
    context.fillStyle = `rgb(${colourAt(scale.palette, at)})`;
    context.fillRect(inset + x, 0, 1.5, 12);
  }
  context.fillStyle = css("--muted");
  context.textAlign = "center";
  const taken = [];
  for (const tick of scale.ticks) {
    const mark = inset + Math.min(1, Math.max(0, (scale.place ?? scale.at)(tick))) * room;
    const text = scale.text(tick);
    const half = context.measureText(text).width / 2 + 4;
    const x = Math.min(Math.max(mark, half), width - half);
    if (taken.some(([at, other, said]) => said === text || Math.abs(at - x) < half + other)) continue;
    taken.push([x, half, text]);
    context.fillRect(mark - 0.5, 12, 1, 4);
    context.fillText(text, x, 23);
  }
}

function showCoverage(data) {
  const body = byId("coverage-body");
  const { coverage } = data;
  document.querySelector("[data-tools=coverage]").hidden = !coverage;
  const left = data.troubles.map((text) => element("p", {}, text));
  if (!coverage) {
    body.replaceChildren(...left, element("p", { class: "muted" }, "The run has not ended: it is still being written, or was killed. The page can say what was skipped or missed once the watch is closed."));
    return;
  }
  const never = coverage.rows.filter((row) => !row.forwards && !row.error);
  const gaps = coverage.rows.filter((row) => row.missing || row.error || Object.keys(row.skipped).length);
  const whole = coverage.rows.length - never.length - gaps.length;
  const parts = [
    ...left,
    element("p", {}, `${plural(coverage.steps, "step")} recorded. ` + (whole === coverage.rows.length
      ? `Every one of the ${integer(whole)} watched tensors was observed in every recorded call.`
      : `Of ${integer(coverage.rows.length)} watched tensors, ${integer(whole)} were observed in every recorded call` +
        `${gaps.length ? `, ${integer(gaps.length)} had gaps` : ""}${never.length ? `, ${integer(never.length)} belong to modules that were never called` : ""}.`)),
  ];
  if (gaps.length) {
    parts.push(table(["Tensor", "Calls", "Observed", "Missing", "Skipped, and why"], gaps.map((row) => [
      `${labelOf(row.name)} ${row.kind}`, row.forwards, row.observed, row.missing,
      [...Object.entries(row.skipped).map(([why, n]) => `${why}: ${integer(n)}`), ...(row.error ? [row.error] : [])].join("; "),
    ]), [1, 2, 3], "Tensors with gaps"));
  }
  if (never.length) {
    const names = never.map((row) => `${labelOf(row.name)} ${row.kind}`);
    parts.push(element("details", {}, element("summary", {}, `${plural(never.length, "tensor")} of modules that were never called`),
      element("ul", {}, ...names.map((name) => element("li", {}, name)))));
  }
  const troubles = Object.entries(coverage.failures).map(([what, why]) => `${what} stopped: ${why}`);
  if (coverage.discarded) troubles.push(`${plural(coverage.discarded, "tensor")} discarded: the last step had not ended when the watch was closed.`);
  if (coverage.stalls) troubles.push(`Training waited ${plural(coverage.stalls, "time")} for the previous step to be read out.`);
  parts.push(...troubles.map((text) => element("p", {}, text)));
  body.replaceChildren(...parts);
}

function coverageRows() {
  return [["layer", "kind", "calls", "observed", "missing", "skipped", "error"],
    ...data.coverage.rows.map((row) => [labelOf(row.name), row.kind, row.forwards, row.observed, row.missing,
      Object.entries(row.skipped).map(([why, n]) => `${why}: ${n}`).join("; "), row.error])];
}

// numbers: which columns are aligned as such.
function table(head, rows, numbers, what) {
  const number = (k) => (numbers.includes(k) ? "number" : k ? null : "name");
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": what },
    element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((text, k) => element("th", { scope: "col", class: k && number(k) }, text)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, k) =>
        element("td", { class: number(k) }, typeof cell === "number" ? integer(cell) : cell)))))));
}

function showRun(data) {
  const { run, spans } = data;
  const merged = spans.reduce((most, span) => Math.max(most, span[2]), 0);
  const wider = data.arrays.filter(({ starts }) => starts).map(({ name }) => name);
  const wide = wider.filter((name) => !name.startsWith("b"));
  if (wide.length < wider.length) wide.push(data.ofRanks ? "numbers of each rank" : "numbers of B");
  const [first, last] = [spans[0][0], spans.at(-1)[1]];
  byId("subtitle").textContent = [
    data.b && !data.ofRanks && `A, with B beside it: ${data.b.name}`, run.model, plural(run.steps, "step"), plural(data.sites.length, "tensor") + " watched",
    run.closed ? null : "not ended: still running, or killed",
  ].filter(Boolean).join(" · ");
  const when = (text) => text ? text.replace("T", " ").replace("+00:00", " UTC") : null;
  const dims = (dim) => dim === null ? "none: whole tensors" : typeof dim === "object" ? JSON.stringify(dim) : String(dim);
  const facts = [
    ["Model", run.model && `${run.model}: ${plural(run.modules, "module")} and ${plural(run.parameters, "parameter")} watched`],
    ["Steps", `${integer(run.steps)} recorded, ${first} to ${last}` + (run.every > 1 ? `, every ${run.every}th` : "") + (run.thinned ? `; ${plural(run.thinned, "step")} thinned out` : "")],
    ["Ranks", run.ranks.length > 1 ? `${run.ranks.join(", ")}; this page shows ${run.rank === null ? `all of them, merged${data.ofRanks ? ", and each one" : "; hookstats report --ranks has each one, too"}` : `rank ${run.rank}`}` : run.ranks[0] ? String(run.ranks[0]) : null],
    ["Kinds", run.kinds.join(", ")],
    ["Channels in dimension", dims(run.channelDim)],
    ["Histograms", [run.bins ?? "none", run.channelBins && `per channel: ${run.channelBins}`].filter(Boolean).join("; ")],
    ["Began", when(run.created)],
    ["Ended", when(run.closed) ?? "not ended"],
    ["Versions", [`hookstats ${run.hookstats}`, run.torch && `torch ${run.torch}`].filter(Boolean).join(", ")],
  ].filter(([, text]) => text);
  data.facts = facts;
  byId("facts").replaceChildren(...facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
  const notes = [
    merged > 1
      ? `${integer(run.steps)} steps are shown in ${integer(data.columns)} columns: each merges up to ${merged} neighbouring recorded steps, and no step is left out; up to ${data.apart} steps that have alerts are not merged. hookstats report --steps A:B shows a window whole.`
      : "Every recorded step has a column.",
    wide.length ? `To keep the file small, ${wide.join(", ")} merge neighbouring steps, and say which; around up to ${data.apart} steps that have alerts none is merged. hookstats report --steps A:B shows a window whole.` : null,
    data.samples.length < run.steps ? `Histograms, quantiles and channels are those of ${plural(data.samples.length, "step")}, each as it was recorded; columns between them show the nearest.` : null,
    "A pixel of several steps shows the most striking of them; zoom by dragging over the steps, and back by a double click.",
    "Statistics are over finite values, to half a percent. NaNs and infinities are counted separately.",
    "A dead channel has finite values, and all of them are zero.",
    "Histograms and quantiles are on an asinh axis: linear near zero, logarithmic beyond. Values beyond its ends are counted in the outermost part.",
    "Channels are coloured by their rms. If there are too many for the picture, neighbours share a row, which shows the greatest rms, and is dead only if all of them are.",
    "Layers are in order of execution; gradients and parameters stand where their layer does.",
  ].filter(Boolean);
  byId("notes").replaceChildren(...notes.map((text) => element("li", {}, text)));
}

const factRows = () => [["what", "is"], ...data.facts];
