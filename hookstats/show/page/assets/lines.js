// View: the chosen statistic of the pinned layers and the current one, as curves over the steps.

const shownLayers = () => [...new Set([chosen.site, ...chosen.pins])];

const linesPlot = { left: 0, width: 0, ready: false };

function drawLines(canvas, { data, column }) {
  const statistic = chosen.shown;
  const magnitude = statistic.scale === "log";
  const layers = shownLayers();
  const at = (s, t) => {
    const i = s * data.columns + t;
    const x = data.seen[i] ? statistic.of(data, i, data.sites[s]) : NaN;
    return magnitude ? x : Math.abs(x);
  };
  const rows = layers.map((s) => {
    const row = [];
    for (let t = range.from; t < range.to; t++) row.push(at(s, t));
    return row;
  });
  const frame = logFrame(canvas, 300, rows.flat(), Math.min(200, canvas.clientWidth * 0.28));
  linesPlot.ready = Boolean(frame);
  if (!frame) {
    const context = canvas.getContext("2d");
    context.fillStyle = css("--muted");
    context.fillText("nothing finite to show here", 62, 40);
    return;
  }
  const { context, plot, y } = frame;
  Object.assign(linesPlot, { left: plot.x, width: plot.w });
  const labels = rows.map((row, n) => {
    const colour = css(WAYS[n % WAYS.length]);
    const points = row.map((x, k) => (x > 0 && x < Infinity ? [middleOf(range.from + k, plot.x, plot.w), y(x)] : null));
    polyline(context, points, colour, n ? 1.25 : 2);
    const end = row.findLast((x) => x > 0 && x < Infinity);
    const site = data.sites[layers[n]];
    return { text: `${label(site)}${site.plain === chosen.kind ? "" : " " + site.plain}`, y: end === undefined ? NaN : y(end), colour, strong: n === 0 };
  }).filter((one) => !Number.isNaN(one.y));
  endLabels(context, labels, plot.x + plot.w + 8, frame.width - plot.x - plot.w - 10, plot.y, plot.y + plot.h);
  stepAxis(context, data.spans, plot.x, plot.w, plot.y + plot.h, column);
  cursorLine(context, column, plot.x, plot.w, plot.y, plot.h);
}

function showPins(data) {
  byId("pins").replaceChildren(...[...chosen.pins].map((s) => {
    const button = element("button", { type: "button", class: "chip", "aria-label": `Unpin ${label(data.sites[s])}` }, `${label(data.sites[s])} ${data.sites[s].plain} ×`);
    button.addEventListener("click", () => togglePin(s));
    return button;
  }));
  byId("pins-note").hidden = chosen.pins.size > 0;
}

function togglePin(s) {
  const pins = new Set(chosen.pins);
  if (!pins.delete(s)) pins.add(s);
  choose({ pins, view: "lines" });
}

addView({
  id: "lines",
  title: "Curves of layers",
  has: () => data.columns > 1,
  draw: drawLines,
  fill: () => showPins(data),
  of: () => chosen.shown.label,
  rows: () => {
    const layers = shownLayers();
    return [["step", ...layers.map((s) => `${layerText(s)} ${chosen.shown.label}`)],
      ...data.spans.map(([first], t) => [first, ...layers.map((s) => finiteOr(chosen.shown.of(data, s * data.columns + t, data.sites[s])))])];
  },
});

const finiteOr = (x) => (Number.isFinite(x) ? x : null);
