// A chart over steps: a canvas that also is a slider over the columns.

const PLOT = { left: 52, bottom: 24, top: 6 };

class Chart {
  // paint(chart) draws, or says why there is nothing; describe(view, column, y in 0..1 from the top)
  // is what a pointer reads there. right: the room beside the plot.
  constructor(canvas, { paint, describe, right, choose, zoom, tip, values }) {
    Object.assign(this, { canvas, paint, describe, right, values });
    const place = () => (this.plot && !this.bare ? { left: this.plot.x, width: this.plot.w } : null);
    timeAxis(canvas, { plot: place, choose, zoom, hover: (column, e) => tip(column !== null && this.inside(e) ? this.describe(this.view, column, this.inside(e).y) : null, e) });
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
    this.bare = false; // whether its horizontal axis is not that of the steps
    const empty = this.paint(this);
    // A chart that has nothing to show takes no room.
    this.canvas.closest("figure").hidden = Boolean(empty);
    if (empty) this.plot = null;
    else if (!this.bare) {
      const { x, y, w, h } = this.plot;
      stepAxis(context, data.spans, x, w, y + h, column);
      cursorLine(context, column, x, w, y, h);
    }
    const canvas = this.canvas;
    canvas.setAttribute("aria-valuemin", "0");
    canvas.setAttribute("aria-valuemax", String(data.columns - 1));
    canvas.setAttribute("aria-valuenow", String(column));
    canvas.setAttribute("aria-valuetext", stepsOf(data.spans[column]) + (empty ? ": " + empty : ""));
  }

  inside(event) {
    const y = (event.clientY - this.canvas.getBoundingClientRect().top - this.plot.y) / this.plot.h;
    return y < 0 || y >= 1 ? null : { y };
  }

  // The y of a position on the value axis, 0 at its lower end.
  up(position) {
    return this.plot.y + (1 - position) * this.plot.h;
  }

  // Draws within the plot alone.
  clipped(draw) {
    const { context, plot } = this;
    context.save();
    context.beginPath();
    context.rect(plot.x, plot.y, plot.w, plot.h);
    context.clip();
    draw();
    context.restore();
  }

  frame() {
    const { context, plot } = this;
    context.strokeStyle = css("--line");
    context.lineWidth = 1;
    context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
  }

  // The samples that are shown: [sample, left, width].
  samples() {
    const { data } = this.view;
    const { x, w } = this.plot;
    const found = [];
    for (let k = 0; k < data.samples.length; k++) {
      const [from, to] = [Math.max(data.sampleFrom[k], range.from), Math.min(data.sampleTo[k], range.to)];
      if (from < to) found.push([k, xOf(from, x, w), ((to - from) / (range.to - range.from)) * w]);
    }
    return found;
  }

  // An image with a column per sample.
  drawSamples(image) {
    const { context, plot } = this;
    this.clipped(() => {
      context.imageSmoothingEnabled = false;
      for (const [k, left, width] of this.samples()) context.drawImage(image, k, 0, 1, image.height, left, plot.y, width + 0.3, plot.h);
    });
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

  // Hatches the samples that were not recorded, or have no finite value.
  missing() {
    const { context, plot } = this;
    const { data, s } = this.view;
    const fills = new Map([[STATE.nonfinite, hatch(context, css("--nonfinite"), 2)], [STATE.absent, hatch(context, css("--warning"), 2)]]);
    for (const [k, left, width] of this.samples()) {
      const i = s * data.columns + data.sampleAt[k];
      if (data.seen[i] && some(data, i)) continue;
      context.fillStyle = fills.get(statesOf(data, s)[data.sampleAt[k]]) ?? hatch(context, css("--muted"));
      context.fillRect(left, plot.y, width + 0.5, plot.h);
    }
  }
}

// The sample that a column shows, in words: its own step, or the nearest one that the page has.
function sampleWords(data, column) {
  const step = data.samples[data.sampleOf[column]][0];
  const [first, last] = data.spans[column];
  return step >= first && step <= last ? `step ${step}` : `step ${step}, the nearest in this picture`;
}
