// View: how the signal grows or fades with depth, in one step: all layers of the chosen kind in order, a
// line for each type of layer.

const flow = { sites: [], left: 0, width: 1 };

const TYPES = 6; // lines with different colours

// [{ type, sites }]: the layers by type, those of which there are most first; few of a kind are one group.
function typesOf(sites) {
  const found = new Map();
  for (const s of sites) {
    const type = data.sites[s].module ?? "others";
    found.set(type, [...(found.get(type) ?? []), s]);
  }
  const all = [...found].map(([type, members]) => ({ type, sites: new Set(members) })).sort((a, b) => b.sites.size - a.sites.size);
  if (all.length <= TYPES) return all;
  return [...all.slice(0, TYPES - 1), { type: "others", sites: new Set(all.slice(TYPES - 1).flatMap(({ sites }) => [...sites])) }];
}

function drawFlow(canvas, { data, column }) {
  const sites = (flow.sites = sitesOf(chosen.kind));
  const at = (s, t) => (data.seen[s * data.columns + t] && some(data, s * data.columns + t) ? data.rms[s * data.columns + t] : NaN);
  const lines = typesOf(sites).flatMap((one, n) => {
    const values = (t) => sites.map((s) => (one.sites.has(s) ? at(s, t) : null));
    const line = { text: one.type, colour: css(WAYS[n]), values: values(column), width: 2 };
    return column === 0 ? [line] : [{ ...line, text: null, values: values(0), width: 1, dash: [2, 3] }, line];
  });
  const frame = logFrame(canvas, 320, lines.flatMap((line) => line.values), Math.min(150, canvas.clientWidth * 0.25));
  if (!frame) return;
  const { context, plot, y } = frame;
  Object.assign(flow, { left: plot.x, width: plot.w });
  const x = (k) => plot.x + ((k + 0.5) / sites.length) * plot.w;
  context.fillStyle = hatch(context, css("--nonfinite"), 2);
  sites.forEach((s, k) => {
    if (nonfinite(data, s * data.columns + column) > 0) context.fillRect(x(k) - plot.w / sites.length / 2, plot.y, Math.max(2, plot.w / sites.length), plot.h);
  });
  for (const { values, colour, width, dash } of lines) {
    const own = values.map((value, k) => [value, k]).filter(([value]) => value !== null); // past other types the line goes on
    polyline(context, own.map(([value, k]) => (value > 0 && value < Infinity ? [x(k), y(value)] : null)), colour, width, dash);
    context.fillStyle = colour;
    if (width > 1 && sites.length < 120) values.forEach((value, k) => value > 0 && context.fillRect(x(k) - 2, y(value) - 2, 4, 4));
  }
  const chosenAt = sites.indexOf(chosen.site);
  if (chosenAt >= 0) {
    context.strokeStyle = css("--ink");
    context.globalAlpha = 0.6;
    context.lineWidth = 1;
    context.strokeRect(x(chosenAt), plot.y, 0.01, plot.h);
    context.globalAlpha = 1;
  }
  const last = ({ values }) => values.findLast((value) => value > 0 && value < Infinity);
  const named = lines.filter((line) => line.text && last(line));
  endLabels(context, named.map((line) => ({ text: line.text, y: y(last(line)), colour: line.colour, strong: false })), plot.x + plot.w + 8, frame.width - plot.x - plot.w - 10, plot.y, plot.y + plot.h);
  flowNames(context, data, sites, plot, x);
  const scrubber = byId("scrubber");
  Object.assign(scrubber, { max: data.columns - 1, value: column });
  scrubber.setAttribute("aria-valuetext", stepsOf(data.spans[column]));
}

function flowNames(context, data, sites, plot, x) {
  context.font = `11px ${css("--mono")}`;
  context.fillStyle = css("--muted");
  const [first, last] = [sites[0], sites.at(-1)].map((s) => elide(context, label(data.sites[s]), plot.w / 3));
  context.textAlign = "left";
  context.fillText(first, plot.x, plot.y + plot.h + 16);
  context.textAlign = "right";
  context.fillText(last, plot.x + plot.w, plot.y + plot.h + 16);
  const k = sites.indexOf(chosen.site);
  if (k <= 0 || k === sites.length - 1) return;
  context.textAlign = "center";
  context.fillStyle = css("--ink");
  const text = elide(context, label(data.sites[chosen.site]), plot.w / 3);
  const half = context.measureText(text).width / 2;
  const [low, high] = [plot.x + context.measureText(first).width + half + 10, plot.x + plot.w - context.measureText(last).width - half - 10];
  if (low < high) context.fillText(text, Math.min(Math.max(x(k), low), high), plot.y + plot.h + 16);
}

function setUpFlow() {
  const canvas = byId("canvas-flow");
  const siteAt = (e) => {
    const k = Math.floor(((e.clientX - canvas.getBoundingClientRect().left - flow.left) / flow.width) * flow.sites.length);
    return flow.sites[k];
  };
  canvas.addEventListener("click", (e) => siteAt(e) !== undefined && choose({ site: siteAt(e) }));
  canvas.addEventListener("pointermove", (e) => {
    const s = siteAt(e);
    tip(s === undefined || e.pointerType !== "mouse" ? null : `${label(data.sites[s])} ${data.sites[s].plain}\nrms ${number(data.rms[s * data.columns + chosen.column])}\ngreatest magnitude ${number(data.amax[s * data.columns + chosen.column])}`, e);
  });
  canvas.addEventListener("pointerleave", () => tip(null));
  canvas.addEventListener("keydown", (e) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!move) return;
    choose({ site: flow.sites[clamp(flow.sites.indexOf(chosen.site) + move, flow.sites.length)] });
    e.preventDefault();
  });
  byId("scrubber").addEventListener("input", (e) => choose({ column: Number(e.target.value) }));
}

addView({
  id: "flow",
  title: "Flow by depth",
  has: () => sitesOf(chosen.kind).length > 1,
  draw: drawFlow,
  of: () => chosen.kind,
  rows: () => [["layer", "kind", "step", "rms", "greatest magnitude", "share of zeros", "not finite"],
    ...sitesOf(chosen.kind).map((s) => {
      const i = s * data.columns + chosen.column;
      return [label(data.sites[s]), data.sites[s].plain, data.spans[chosen.column][0], finiteOr(data.rms[i]), finiteOr(data.amax[i]), finiteOr(data.zero[i]), nonfinite(data, i)];
    })],
});
