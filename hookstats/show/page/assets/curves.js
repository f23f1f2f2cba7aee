// The numbers of training - loss, learning rate, norm of the gradients - on the heatmap's axis.

const CURVE = { height: 34, gap: 6 };

// "nan", "inf" and "-inf" stand for themselves, null for nothing.
const curveValue = (x) => (typeof x === "string" ? { nan: NaN, inf: Infinity, "-inf": -Infinity }[x] : x);

const curveText = (x) => (x === null ? "–" : Number.isNaN(x) ? "NaN" : number(x));

class Curves {
  // choose(column), hover(column, event) or hover(null)
  constructor(canvas, { choose, hover }) {
    this.canvas = canvas;
    canvas.addEventListener("click", (e) => {
      const column = this.columnAt(e);
      if (column !== null) choose(column);
    });
    canvas.addEventListener("pointermove", (e) => hover(e.pointerType === "mouse" ? this.columnAt(e) : null, e));
    canvas.addEventListener("pointerleave", () => hover(null));
  }

  // left, plot: where the columns begin, and how wide they are together
  show({ data, column, left, plot }) {
    Object.assign(this, { data, left, plot });
    this.canvas.hidden = !data.curves.length;
    if (this.canvas.hidden) return;
    const height = data.curves.length * (CURVE.height + CURVE.gap);
    const { context, width } = fit(this.canvas, height);
    context.clearRect(0, 0, width, height);
    data.curves.forEach((curve, i) => this.paint(context, curve, i * (CURVE.height + CURVE.gap), column));
    context.strokeStyle = css("--ink");
    context.globalAlpha = 0.5;
    context.beginPath();
    context.moveTo(this.x(column), 0);
    context.lineTo(this.x(column), height - CURVE.gap);
    context.stroke();
    context.globalAlpha = 1;
  }

  x(column) {
    return this.left + ((column + 0.5) / this.data.columns) * this.plot;
  }

  paint(context, curve, top, column) {
    const values = curve.values.map(curveValue);
    const finite = values.filter((x) => x !== null && Number.isFinite(x));
    const [lo, hi] = [Math.min(...finite), Math.max(...finite)];
    const log = lo > 0 && hi / lo > 20;
    const place = (x) => (log ? Math.log(x / lo) / Math.log(hi / lo) : (x - lo) / (hi - lo || 1));
    const y = (x) => top + 3 + (1 - place(x)) * (CURVE.height - 6);
    context.fillStyle = css("--soft");
    context.fillRect(this.left, top, this.plot, CURVE.height);
    const cell = this.plot / this.data.columns;
    values.forEach((x, t) => {
      if (x === null || Number.isFinite(x)) return;
      context.fillStyle = css("--nonfinite");
      context.fillRect(this.left + t * cell, top, Math.max(cell, 2), CURVE.height);
    });
    context.strokeStyle = css("--accent");
    context.lineWidth = 1.5;
    context.beginPath();
    let on = false;
    values.forEach((x, t) => {
      if (x === null) return; // steps that are not logged: the line goes on
      if (!Number.isFinite(x)) on = false;
      else {
        if (on) context.lineTo(this.x(t), y(x));
        else context.moveTo(this.x(t), y(x));
        context.lineTo(this.x(t) + 0.01, y(x)); // a single point shows, too
        on = true;
      }
    });
    context.stroke();
    context.lineWidth = 1;
    context.textAlign = "left";
    context.fillStyle = css("--muted");
    context.font = `11px ${css("--mono")}`;
    context.fillText(shorten(context, curve.name, this.left - 10), 0, top + 10);
    context.fillStyle = css("--ink");
    context.fillText(curveText(values[column]), 0, top + CURVE.height - 9);
  }

  columnAt(event) {
    const at = event.clientX - this.canvas.getBoundingClientRect().left - this.left;
    const column = Math.floor((at / this.plot) * this.data.columns);
    return column < 0 || column >= this.data.columns ? null : column;
  }
}

// What was logged in a column, in words.
function describeCurves(data, column) {
  return data.curves.map(({ name, values }) => `${name} ${curveText(curveValue(values[column]))}`);
}
