// The quantiles of one site over the steps.

const BANDS = ["1 %", "25 %", "median", "75 %", "99 %"];

function paintQuantiles(chart) {
  const { data, s } = chart.view;
  const site = data.sites[s];
  if (!site.axis) return NO_HISTOGRAM;
  const { context, plot } = chart;
  const rows = quantilesOf(data, s);
  const extremes = [data.min, data.max].map((values) =>
    Array.from(data.sampleAt, (t) => {
      const i = s * data.columns + t;
      return data.seen[i] && some(data, i) ? positionOf(site.axis, values[i]) : NaN;
    }));
  chart.valueAxis(site.axis, true);
  chart.missing();
  const x = (k) => middleOf(data.sampleAt[k], plot.x, plot.w);
  const band = (low, high, alpha) => {
    context.fillStyle = `rgba(${css("--band")}, ${alpha})`;
    for (const [from, to] of stretches(low)) {
      const ends = from === to ? [x(from) - 2, x(from) + 2] : null;
      context.beginPath();
      for (let t = from; t <= to; t++) context.lineTo(ends ? ends[0] : x(t), chart.up(high[t]));
      if (ends) context.lineTo(ends[1], chart.up(high[from]));
      for (let t = to; t >= from; t--) context.lineTo(ends ? ends[1] : x(t), chart.up(low[t]));
      if (ends) context.lineTo(ends[0], chart.up(low[from]));
      context.fill();
    }
  };
  const line = (row, ...style) => polyline(context, row.map((p, k) => (Number.isNaN(p) ? null : [x(k), chart.up(p)])), ...style);
  chart.clipped(() => {
    band(rows[0], rows[4], 0.2);
    band(rows[1], rows[3], 0.35);
    for (const row of extremes) line(row, css("--muted"), 1, [2, 2]);
    line(rows[2], css("--accent"), 2);
  });
  // The names of the lines, at the right end.
  const ends = [...BANDS.map((name, q) => [name, rows[q]]), ["min", extremes[0]], ["max", extremes[1]]]
    .map(([name, row]) => [name, row.findLast((p, k) => !Number.isNaN(p) && data.sampleAt[k] < range.to)])
    .filter(([, p]) => p !== undefined);
  const order = ["median", "min", "max", "1 %", "99 %", "25 %", "75 %"].map((name) => ends.find(([other]) => other === name));
  const labels = order.filter(Boolean).map(([text, p]) => ({ text, y: chart.up(p), colour: css(text === "median" ? "--accent" : "--muted"), strong: text === "median" }));
  endLabels(context, labels, plot.x + plot.w + 6, chart.right - 6, plot.y, plot.y + plot.h);
  return null;
}

function positionOf([scale, lo, hi], x) {
  return Math.min(1, Math.max(0, (Math.asinh(x / scale) - lo) / (hi - lo)));
}

// [from, to] of every run of numbers between NaNs.
function stretches(row) {
  const found = [];
  row.forEach((p, t) => {
    if (Number.isNaN(p)) return;
    if (t && !Number.isNaN(row[t - 1])) found.at(-1)[1] = t;
    else found.push([t, t]);
  });
  return found;
}

// The quantiles of a sample, as exact as a pixel of the axis: [[name, value], ...].
function quantileValues(data, s, k) {
  const [scale, lo, hi] = data.sites[s].axis;
  const at = (position) => scale * Math.sinh(lo + (hi - lo) * position);
  return quantilesOf(data, s).map((row, q) => {
    // A value that may be zero is shown as zero.
    const zero = at(row[k] - 1 / 254) <= 0 && at(row[k] + 1 / 254) >= 0;
    return [BANDS[q], zero ? 0 : Number(at(row[k]).toPrecision(2))];
  });
}

function describeQuantiles({ data, s }, column) {
  const k = data.sampleOf[column];
  const i = s * data.columns + data.sampleAt[k];
  const lines = [sampleWords(data, column)];
  if (!data.seen[i] || !some(data, i)) return [...lines, "no finite value"].join("\n");
  return [...lines, ...quantileValues(data, s, k).map(([name, x]) => `${name}: about ${number(x)}`).reverse()].join("\n");
}

function quantileRows(data, s) {
  if (!data.sites[s].axis) return [["step"]];
  return [["step", ...BANDS], ...data.samples.map(([step], k) => [step, ...quantileValues(data, s, k).map(([, x]) => (Number.isNaN(x) ? null : x))])];
}
