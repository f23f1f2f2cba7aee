// Above the heatmap, on its axis: the incidents, and the numbers of training.

const CURVE = { height: 34, gap: 6, incidents: 18 };

// "nan", "inf" and "-inf" stand for themselves, null for nothing.
const curveValue = (x) => (typeof x === "string" ? { nan: NaN, inf: Infinity, "-inf": -Infinity }[x] : x);

const curveText = (x) => (x === null ? "–" : Number.isNaN(x) ? "NaN" : number(x));

class Curves {
  // choose(column), hover(column, event) or hover(null), zoom(from, to)
  constructor(canvas, { choose, hover, zoom }) {
    this.canvas = canvas;
    timeAxis(canvas, { plot: () => (this.data ? { left: this.left, width: this.plot } : null), choose, hover, zoom });
  }

  // left, plot: where the columns begin, and how wide they are together
  show({ data, column, left, plot }) {
    Object.assign(this, { data, left, plot });
    const strip = data.incidents.length ? CURVE.incidents : 0;
    const height = strip + data.curves.length * (CURVE.height + CURVE.gap);
    byId("curve-tools").hidden = !data.curves.length;
    this.canvas.hidden = !height;
    if (this.canvas.hidden) return;
    const { context, width } = fit(this.canvas, height);
    context.clearRect(0, 0, width, height);
    context.save();
    if (strip) this.paintIncidents(context);
    data.curves.forEach((curve, i) => this.paint(context, curve, strip + i * (CURVE.height + CURVE.gap), column));
    context.restore();
    cursorLine(context, column, left, plot, strip, height - strip - CURVE.gap);
  }

  x(column) {
    return middleOf(column, this.left, this.plot);
  }

  // Each incident from where it began to its last alert.
  paintIncidents(context) {
    const { data } = this;
    context.font = `11px ${css("--mono")}`;
    context.fillStyle = css("--muted");
    context.textAlign = "left";
    context.fillText("incidents", 0, 6);
    const inside = (x) => Math.min(Math.max(x, this.left), this.left + this.plot);
    for (const { alerts, severity, last } of [...data.incidents].reverse()) {
      const [from, to] = [beginOf(data.alerts[alerts[0]]), nearestColumn(last)];
      if (to < range.from || from >= range.to) continue;
      context.fillStyle = css(`--${severity}`);
      context.globalAlpha = 0.35;
      context.fillRect(inside(this.x(from)), 4, inside(this.x(to)) - inside(this.x(from)), 4);
      context.globalAlpha = 1;
      if (from < range.from) continue;
      markPath(context, severity, this.x(from), 6);
      context.fill();
    }
  }

  paint(context, curve, top, column) {
    const values = curve.values.slice(range.from, range.to).map(curveValue);
    const finite = values.filter((x) => x !== null && Number.isFinite(x));
    let [lo, hi] = [Infinity, -Infinity];
    for (const x of finite) [lo, hi] = [Math.min(lo, x), Math.max(hi, x)];
    const least = 0.005 * Math.max(Math.abs(lo), Math.abs(hi)); // less is no change worth showing
    if (hi - lo < least) [lo, hi] = [(lo + hi - least) / 2, (lo + hi + least) / 2];
    const log = lo > 0 && this.log;
    const place = (x) => (hi === lo ? 0.5 : log ? Math.log(x / lo) / Math.log(hi / lo) : (x - lo) / (hi - lo));
    const y = (x) => top + 3 + (1 - place(x)) * (CURVE.height - 6);
    context.fillStyle = css("--soft");
    context.fillRect(this.left, top, this.plot, CURVE.height);
    const cell = this.plot / (range.to - range.from);
    values.forEach((x, t) => {
      if (x === null || Number.isFinite(x)) return;
      context.fillStyle = css("--nonfinite");
      const x0 = Math.round(this.left + t * cell);
      context.fillRect(x0, top, Math.max(Math.round(this.left + (t + 1) * cell) - x0, 2), CURVE.height);
    });
    context.save();
    context.beginPath();
    context.rect(this.left, top, this.plot, CURVE.height);
    context.clip();
    const other = this.data.b?.curves.find(({ name }) => name === curve.name);
    const draw = (values, colour, dash) => {
      context.globalAlpha = this.smooth ? 0.3 : 1;
      this.line(context, values, y, colour, dash);
      context.globalAlpha = 1;
      if (this.smooth) this.line(context, smoothed(values), y, colour, dash);
    };
    if (other) draw(other.values.slice(range.from, range.to).map(curveValue), css("--warning"), [4, 3]);
    draw(values, css("--accent"));
    context.restore();
    context.textAlign = "left";
    context.fillStyle = css("--muted");
    context.font = `11px ${css("--mono")}`;
    context.fillText(elide(context, curve.label, this.left - 10), 0, top + 10);
    context.fillStyle = css("--ink");
    context.fillText(curveText(curveValue(curve.values[column])), 0, top + CURVE.height - 9);
  }

  line(context, values, y, colour, dash) {
    const logged = values.map((x, t) => [x, t]).filter(([x]) => x !== null); // past others the line goes on
    polyline(context, logged.map(([x, t]) => (Number.isFinite(x) ? [this.x(range.from + t), y(x)] : null)), colour, 1.5, dash);
  }
}

// The exponential moving average over a fortieth of what is shown, without a bias to its start.
function smoothed(values) {
  const keep = 1 - 1 / Math.max(3, values.length / 40);
  let [sum, weight] = [0, 0];
  return values.map((x) => {
    if (x === null || !Number.isFinite(x)) return x;
    [sum, weight] = [keep * sum + x, keep * weight + 1];
    return sum / weight;
  });
}

// What was logged in a column, in words.
function describeCurves(data, column) {
  return data.curves.map(({ label, values }) => `${label} ${curveText(curveValue(values[column]))}`);
}

// The incidents that begin in a column, in words.
function describeIncidents(data, column) {
  return data.incidents.map(({ alerts }) => data.alerts[alerts[0]])
    .filter((cause) => beginOf(cause) === column)
    .map((cause) => `${cause.rule}: ${labelOf(cause.name)} ${cause.kind}`);
}

// The lines of a CSV: the name, and the value of each column.
function curveRows(columns) {
  return sources().flatMap((d) => d.curves.map(({ name, values }) =>
    [name, "curve", d === data ? null : besideNames().short, ...columns.map((t) => finiteOr(curveValue(values[t])))]));
}
