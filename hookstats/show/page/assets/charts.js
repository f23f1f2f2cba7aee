// The charts of one site: histogram, quantiles and channels over the steps.

const PLOT = { left: 52, bottom: 24, top: 6 };

// A chart is a canvas that also is a slider over the columns.
class Chart {
  // paint(chart) draws; describe(column, y in 0..1 from the top) is what a pointer reads there.
  constructor(canvas, { paint, describe, right, choose, tip }) {
    Object.assign(this, { canvas, paint, describe, right });
    canvas.addEventListener("click", (e) => {
      const at = this.at(e);
      if (at) choose(at.column);
    });
    canvas.addEventListener("pointermove", (e) => {
      const at = e.pointerType === "mouse" ? this.at(e) : null;
      tip(at && this.describe(this.view, at.column, at.y), e);
    });
    canvas.addEventListener("pointerleave", () => tip(null));
    canvas.addEventListener("keydown", (e) => {
      const last = this.view.data.columns - 1;
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -last, End: last };
      if (!(e.key in moves)) return;
      choose(this.view.column + moves[e.key]);
      e.preventDefault();
    });
  }

  // view: data, s (the site), column
  show(view) {
    this.view = view;
    const { data, column } = view;
    const height = this.canvas.clientHeight;
    const { context, width } = fit(this.canvas, height);
    Object.assign(this, { context, width, height });
    this.plot = { x: PLOT.left, y: PLOT.top, w: width - PLOT.left - this.right, h: height - PLOT.top - PLOT.bottom };
    context.clearRect(0, 0, width, height);
    const empty = this.paint(this);
    if (empty) {
      context.fillStyle = css("--muted");
      context.textAlign = "center";
      context.fillText(empty, width / 2, height / 2);
      this.plot = null;
    } else {
      const { x, y, w, h } = this.plot;
      stepAxis(context, data.spans, x, w, y + h, column);
      const middle = x + ((column + 0.5) / data.columns) * w;
      for (const [colour, line] of [["--card", 3], ["--ink", 1]]) {
        context.strokeStyle = css(colour);
        context.lineWidth = line;
        context.globalAlpha = 0.75;
        context.beginPath();
        context.moveTo(middle, y);
        context.lineTo(middle, y + h);
        context.stroke();
      }
      context.globalAlpha = 1;
    }
    const canvas = this.canvas;
    canvas.setAttribute("aria-valuemin", "0");
    canvas.setAttribute("aria-valuemax", String(data.columns - 1));
    canvas.setAttribute("aria-valuenow", String(column));
    canvas.setAttribute("aria-valuetext", stepsOf(data.spans[column]) + (empty ? ": " + empty : ""));
  }

  at(event) {
    if (!this.plot) return null;
    const box = this.canvas.getBoundingClientRect();
    const x = (event.clientX - box.left - this.plot.x) / this.plot.w;
    const y = (event.clientY - box.top - this.plot.y) / this.plot.h;
    if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
    return { column: Math.floor(x * this.view.data.columns), y };
  }

  // The y of a position on the value axis, 0 at its lower end.
  up(position) {
    return this.plot.y + (1 - position) * this.plot.h;
  }

  valueAxis(axis, lines) {
    const { context, plot } = this;
    context.font = `11px ${css("--sans")}`;
    context.textAlign = "right";
    for (const { value, position } of axisTicks(axis, plot.h, 16)) {
      const y = this.up(position);
      context.fillStyle = css("--muted");
      context.fillText(number(value), plot.x - 7, y);
      context.fillStyle = css("--line");
      if (lines) context.fillRect(plot.x, Math.round(y), plot.w, 1);
      else context.fillRect(plot.x - 4, Math.round(y), 4, 1);
    }
  }

  // Hatches the columns that were not recorded, or have no finite value.
  missing() {
    const { context, plot } = this;
    const { data, s } = this.view;
    const fills = [hatch(context, css("--muted")), hatch(context, css("--nonfinite"), 2)];
    for (let t = 0; t < data.columns; t++) {
      const i = s * data.columns + t;
      if (data.seen[i] && some(data, i)) continue;
      context.fillStyle = fills[Number(data.seen[i] && nonfinite(data, i) > 0)];
      context.fillRect(plot.x + (t / data.columns) * plot.w, plot.y, plot.w / data.columns + 0.5, plot.h);
    }
  }
}

const NO_HISTOGRAM = "no histogram: there were no finite values, or no bins";

function paintHistogram(chart) {
  const { data, s, column } = chart.view;
  const axis = data.sites[s].axis;
  if (!axis) return NO_HISTOGRAM;
  const { context, plot } = chart;
  const bytes = data.arrays["hist" + s];
  const level = (bin, t) => bytes[bin * data.columns + t];
  chart.valueAxis(axis, false);
  chart.missing();
  const image = picture(data.columns, data.bins, (t, y) => {
    const shade = level(data.bins - 1 - y, t);
    return shade ? colourAt("sequential", (shade - 1) / (data.levels - 1)) : null;
  });
  context.drawImage(image, plot.x, plot.y, plot.w, plot.h);
  context.strokeStyle = css("--line");
  context.lineWidth = 1;
  context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
  // Beside it, the chosen step: bars as long as the colours are bright.
  const room = chart.width - plot.x - plot.w - 10;
  const h = plot.h / data.bins;
  context.fillStyle = css("--accent");
  for (let bin = 0; bin < data.bins; bin++) {
    const length = (level(bin, column) / data.levels) * room;
    context.fillRect(plot.x + plot.w + 8, chart.up((bin + 1) / data.bins) + 0.5, length, Math.max(1, h - 1));
  }
  return null;
}

// The share of values that a shade stands for, as content.py chose it: from one in 10^4 to all.
function shareOf(data, shade) {
  return shade ? 1e-4 ** (1 - (shade - 1) / (data.levels - 1)) : 0;
}

function describeHistogram({ data, s }, column, y) {
  const axis = data.sites[s].axis;
  const bin = Math.min(data.bins - 1, Math.floor((1 - y) * data.bins));
  const part = (position) => axis[0] * Math.sinh(axis[1] + (axis[2] - axis[1]) * position);
  const shade = data.arrays["hist" + s][bin * data.columns + column];
  const share = shade ? (shade === 1 ? "0.01 % or less" : "about " + percent(Number(shareOf(data, shade).toPrecision(2)))) : "no value";
  return `${stepsOf(data.spans[column])}\n${number(part(bin / data.bins))} to ${number(part((bin + 1) / data.bins))}: ${share}`;
}

const BANDS = ["1 %", "25 %", "median", "75 %", "99 %"];

function paintQuantiles(chart) {
  const { data, s } = chart.view;
  const site = data.sites[s];
  if (!site.axis) return NO_HISTOGRAM;
  const { context, plot } = chart;
  const rows = quantilesOf(data, s);
  const extremes = [data.min, data.max].map((values) =>
    Array.from({ length: data.columns }, (_, t) => {
      const i = s * data.columns + t;
      return data.seen[i] && some(data, i) ? positionOf(site.axis, values[i]) : NaN;
    }));
  chart.valueAxis(site.axis, true);
  chart.missing();
  const x = (t) => plot.x + ((t + 0.5) / data.columns) * plot.w;
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
  const line = (row, colour, width, dash = []) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    for (const [from, to] of stretches(row)) {
      context.beginPath();
      if (from === to) context.moveTo(x(from) - 2, chart.up(row[from]));
      for (let t = from; t <= to; t++) context.lineTo(x(t) + (from === to ? 2 : 0), chart.up(row[t]));
      context.stroke();
    }
    context.setLineDash([]);
  };
  band(rows[0], rows[4], 0.2);
  band(rows[1], rows[3], 0.35);
  for (const row of extremes) line(row, css("--muted"), 1, [2, 2]);
  line(rows[2], css("--accent"), 2);
  // The names of the lines, at the right end.
  const ends = [...BANDS.map((name, q) => [name, rows[q]]), ["min", extremes[0]], ["max", extremes[1]]]
    .map(([name, row]) => [name, row.findLast((p) => !Number.isNaN(p))])
    .filter(([, p]) => p !== undefined);
  const order = ["median", "min", "max", "1 %", "99 %", "25 %", "75 %"];
  const taken = [];
  context.textAlign = "left";
  for (const name of order) {
    const end = ends.find(([other]) => other === name);
    if (!end) continue;
    const y = Math.min(Math.max(chart.up(end[1]), plot.y + 5), plot.y + plot.h - 5);
    if (taken.some((other) => Math.abs(other - y) < 12)) continue;
    taken.push(y);
    context.font = `${name === "median" ? "600 " : ""}11px ${css("--sans")}`;
    context.fillStyle = css(name === "median" ? "--accent" : "--muted");
    context.fillText(name, plot.x + plot.w + 6, y);
  }
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

function describeQuantiles({ data, s }, column) {
  const [scale, lo, hi] = data.sites[s].axis;
  const i = s * data.columns + column;
  if (!data.seen[i] || !some(data, i)) return `${stepsOf(data.spans[column])}\nno finite value`;
  const lines = quantilesOf(data, s).map((row, q) => {
    // As exact as a pixel of the axis; a value that may be zero is shown as zero.
    const at = (position) => scale * Math.sinh(lo + (hi - lo) * position);
    const zero = at(row[column] - 1 / 254) <= 0 && at(row[column] + 1 / 254) >= 0;
    return `${BANDS[q]}: about ${zero ? 0 : number(Number(at(row[column]).toPrecision(2)))}`;
  });
  return [stepsOf(data.spans[column]), `max: ${number(data.max[i])}`, ...lines.reverse(), `min: ${number(data.min[i])}`].join("\n");
}

// The group that thing i of `count` belongs to, of as many nearly equal groups.
const groupOf = (i, count, groups) => Math.floor(((i + 1) * groups - 1) / count);
const groupStart = (g, count, groups) => Math.floor((g * count) / groups);

function paintChannels(chart) {
  const { data, s, column } = chart.view;
  const site = data.sites[s];
  if (site.uneven) return "the number of channels changes from step to step";
  if (!site.image) return site.channels === 1 ? "the whole tensor is one channel" : "no channels";
  const { context, plot } = chart;
  const [rows, columns] = site.image;
  const bytes = data.arrays["channels" + s];
  const special = [null, rgbOf("--none"), rgbOf("--nonfinite")];
  const colour = (code) => code < CODES.firstLevel ? special[code]
    : colourAt("sequential", (code - CODES.firstLevel) / (data.channelLevels - 1));
  chart.missing();
  const image = picture(columns, rows, (t, y) => colour(bytes[y * columns + t]));
  context.drawImage(image, plot.x, plot.y, plot.w, plot.h);
  context.fillStyle = hatch(context, "rgba(255, 255, 255, 0.85)");
  bytes.forEach((code, i) => {
    if (code !== CODES.nonfinite) return;
    const [x, y] = [(i % columns) / columns, Math.floor(i / columns) / rows];
    context.fillRect(plot.x + x * plot.w, plot.y + y * plot.h, plot.w / columns, plot.h / rows);
  });
  context.strokeStyle = css("--line");
  context.lineWidth = 1;
  context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
  context.fillStyle = css("--muted");
  context.textAlign = "right";
  const pace = [1, 2, 4, 8].map((m) => m * 2 ** Math.max(0, Math.floor(Math.log2((site.channels / plot.h) * 14)))).find((p) => (p / site.channels) * plot.h >= 14);
  for (let c = 0; c < site.channels; c += pace) {
    context.fillText(c, plot.x - 8, plot.y + ((c + 0.5) / site.channels) * plot.h);
  }
  // Beside it, the chosen step: bars as long as the rms, and a mark where a channel is dead.
  const t = groupOf(column, data.columns, columns);
  const room = chart.width - plot.x - plot.w - 10;
  for (let y = 0; y < rows; y++) {
    const code = bytes[y * columns + t];
    const top = plot.y + (y / rows) * plot.h;
    const h = Math.max(1, plot.h / rows - (plot.h / rows > 3 ? 1 : 0));
    if (code >= CODES.firstLevel) {
      context.fillStyle = css("--accent");
      context.fillRect(plot.x + plot.w + 8, top, Math.max(1, ((code - CODES.firstLevel + 1) / data.channelLevels) * room), h);
    } else if (code !== CODES.missing) {
      context.fillStyle = css(code === CODES.dead ? "--warning" : "--nonfinite");
      context.fillRect(plot.x + plot.w + 8, top, 6, h);
    }
  }
  return null;
}

function describeChannels({ data, s }, column, y) {
  const site = data.sites[s];
  const [rows, columns] = site.image;
  const row = Math.min(rows - 1, Math.floor(y * rows));
  const t = groupOf(column, data.columns, columns);
  const first = data.spans[groupStart(t, data.columns, columns)];
  const last = data.spans[groupStart(t + 1, data.columns, columns) - 1];
  const from = groupStart(row, site.channels, rows);
  const to = groupStart(row + 1, site.channels, rows) - 1;
  const code = data.arrays["channels" + s][row * columns + t];
  const [low, high] = site.rms;
  const position = (code - CODES.firstLevel) / (data.channelLevels - 1);
  const several = to > from;
  const say = {
    [CODES.missing]: "not recorded",
    [CODES.dead]: several ? "all dead: every value is zero" : "dead: every value is zero",
    [CODES.nonfinite]: several ? "NaN or infinity in one of these channels" : "NaN or infinity",
  }[code] ?? `${several ? "greatest rms" : "rms"} about ${number(Number((low * (high / low) ** position).toPrecision(2)))}`;
  const where = several ? `channels ${from}–${to}` : `channel ${from}`;
  return `${where}, ${stepsOf([first[0], last[1], last[1] - first[0] + 1])}\n${say}`;
}
