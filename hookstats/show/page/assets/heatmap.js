// The heatmap: layers by steps, one colour per cell.

class Heatmap {
  // choose(row, column), hover(row, column, event) or hover(null), enter()
  constructor(box, axis, { choose, hover, enter }) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.axis = axis;
    this.canvas.addEventListener("click", (e) => {
      const cell = this.cellAt(e);
      if (cell) choose(...cell);
    });
    this.canvas.addEventListener("pointermove", (e) => {
      const cell = e.pointerType === "mouse" ? this.cellAt(e) : null;
      hover(cell, e);
    });
    this.canvas.addEventListener("pointerleave", () => hover(null));
    box.addEventListener("keydown", (e) => {
      const { row, column } = this.view;
      const last = this.view.data.columns - 1;
      const moves = {
        ArrowUp: [row - 1, column],
        ArrowDown: [row + 1, column],
        ArrowLeft: [row, column - 1],
        ArrowRight: [row, column + 1],
        PageUp: [row - 10, column],
        PageDown: [row + 10, column],
        Home: [e.ctrlKey ? 0 : row, 0],
        End: [e.ctrlKey ? Infinity : row, last],
      };
      if (e.key === "Enter") enter();
      else if (moves[e.key] && !e.altKey && !e.metaKey) choose(...moves[e.key], true);
      else return;
      e.preventDefault();
    });
  }

  // view: data, sites (one per row), row, column, statistic, values, scale
  show(view) {
    this.view = view;
    const { data, sites } = view;
    this.picture = picture(data.columns, sites.length, this.colours());
    this.draw();
  }

  // What a cell is: "missing", "nonfinite", "none" (zero on a log scale, or a share), or a number.
  cell(row, column) {
    const { data, sites, statistic, values, ratios, scale } = this.view;
    const i = sites[row] * data.columns + column;
    if (!data.seen[i]) return "missing";
    if (statistic.id !== "nonfinite" && nonfinite(data, i) > 0) return "nonfinite";
    const x = values[row][column];
    if (Number.isNaN(x)) return "missing";
    if (x === 0 && (scale.zero || ratios)) return "none";
    return ratios ? ratios[row][column] : x;
  }

  colours() {
    const special = { missing: null, nonfinite: rgbOf("--nonfinite"), none: rgbOf("--none") };
    const { palette, at } = this.view.scale;
    return (column, row) => {
      const cell = this.cell(row, column);
      return typeof cell === "string" ? special[cell] : colourAt(palette, at(cell));
    };
  }

  layout(width) {
    const { data, sites } = this.view;
    const room = width * (width < 560 ? 0.38 : 0.3);
    const context = this.canvas.getContext("2d");
    context.font = `11px ${css("--mono")}`;
    const widest = Math.max(...sites.map((s) => context.measureText(label(data.sites[s])).width));
    const left = Math.min(widest + 14, room, 300);
    const rowHeight = Math.max(4, Math.min(22, Math.floor(440 / sites.length)));
    return { left, plot: width - left, rowHeight, height: rowHeight * sites.length };
  }

  draw() {
    const { data, sites, row, column } = this.view;
    const l = (this.l = this.layout(this.canvas.clientWidth));
    const { context, width } = fit(this.canvas, l.height);
    context.clearRect(0, 0, width, l.height);
    context.fillStyle = hatch(context, css("--muted"));
    context.fillRect(l.left, 0, l.plot, l.height);
    context.drawImage(this.picture, l.left, 0, l.plot, l.height);
    const cellWidth = l.plot / data.columns;
    this.strike(context, cellWidth);
    if (l.rowHeight >= 9) {
      context.fillStyle = css("--card");
      for (let r = 1; r < sites.length; r++) context.fillRect(l.left, r * l.rowHeight - 0.5, l.plot, 1);
    }
    this.labels(context);
    for (const alert of this.view.alerts) {
      context.beginPath();
      context.arc(l.left + (alert.column + 0.5) * cellWidth, (alert.row + 0.5) * l.rowHeight, 4, 0, 7);
      context.lineWidth = 2;
      context.strokeStyle = css("--card");
      context.stroke();
      context.fillStyle = css(`--${alert.severity}`);
      context.fill();
    }
    const [w, h] = [Math.max(cellWidth, 5), Math.max(l.rowHeight, 5)];
    const inside = (at, size, room) => Math.min(Math.max(at, 1), room - size - 1);
    const x = inside(l.left + (column + 0.5) * cellWidth - w / 2, w, width);
    const y = inside(row * l.rowHeight, h, l.height);
    context.strokeStyle = css("--ink");
    context.lineWidth = 1;
    context.globalAlpha = 0.5;
    context.strokeRect(l.left + 0.5, row * l.rowHeight + 0.5, l.plot - 1, l.rowHeight - 1);
    context.globalAlpha = 1;
    context.lineWidth = 4;
    context.strokeStyle = css("--card");
    context.strokeRect(x, y, w, h);
    context.lineWidth = 2;
    context.strokeStyle = css("--ink");
    context.strokeRect(x, y, w, h);
    this.drawAxis(cellWidth);
  }

  // Not by colour alone: non-finite cells are hatched, too.
  strike(context, cellWidth) {
    const { data, sites } = this.view;
    context.fillStyle = hatch(context, "rgba(255, 255, 255, 0.85)");
    for (let r = 0; r < sites.length; r++) {
      for (let t = 0; t < data.columns; t++) {
        if (this.cell(r, t) !== "nonfinite") continue;
        context.fillRect(this.l.left + t * cellWidth, r * this.l.rowHeight, cellWidth, this.l.rowHeight);
      }
    }
  }

  labels(context) {
    const { data, sites, row } = this.view;
    const { left, rowHeight } = this.l;
    const middle = (r) => Math.min(Math.max((r + 0.5) * rowHeight, 6), this.l.height - 6);
    let above = -Infinity;
    context.textAlign = "left";
    for (let r = 0; r < sites.length; r++) {
      const y = middle(r);
      const chosen = r === row;
      if (!chosen && (y - above < 12 || Math.abs(y - middle(row)) < 12)) continue;
      above = y;
      context.font = `${chosen ? "600 " : ""}11px ${css("--mono")}`;
      context.fillStyle = css(chosen ? "--accent" : "--muted");
      const text = shorten(context, label(data.sites[sites[r]]), left - 10);
      context.fillText(text, 0, y);
    }
  }

  drawAxis(cellWidth) {
    const { context, width } = fit(this.axis, 24);
    context.clearRect(0, 0, width, 24);
    const bar = this.box.offsetWidth - this.box.clientWidth; // a scrollbar narrows the heatmap
    stepAxis(context, this.view.data.spans, this.l.left, width - bar - this.l.left, 0, this.view.column);
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const { data, sites } = this.view;
    const column = Math.floor(((event.clientX - box.left - this.l.left) / this.l.plot) * data.columns);
    const row = Math.floor((event.clientY - box.top) / this.l.rowHeight);
    if (row < 0 || row >= sites.length || column >= data.columns) return null;
    return [row, column < 0 ? this.view.column : column];
  }

  // Scrolls the chosen row into the box; never the page.
  reveal() {
    const top = this.view.row * this.l.rowHeight;
    const { scrollTop, clientHeight } = this.box;
    if (top < scrollTop) this.box.scrollTop = top - this.l.rowHeight;
    else if (top + this.l.rowHeight > scrollTop + clientHeight) {
      this.box.scrollTop = top + 2 * this.l.rowHeight - clientHeight;
    }
  }
}

function label(site) {
  return labelOf(site.name) + site.leaf + (site.phase ? ` ${site.phase}` : "");
}

// encoder.layers.0.norm -> e.layers.0.norm -> e.l.0.norm -> e.l.0.no…: names stay different.
function shorten(context, text, room) {
  const fits = (short) => context.measureText(short).width <= room;
  const parts = text.split(".");
  for (let k = 0; k < parts.length - 1 && !fits(parts.join(".")); k++) {
    if (!/^\d/.test(parts[k])) parts[k] = parts[k].slice(0, 1);
  }
  let short = parts.join(".");
  if (fits(short)) return short;
  while (short.length > 1 && !fits(short + "…")) short = short.slice(0, -1);
  return short + "…";
}

// Steps below a plot, and which of them is chosen.
function stepAxis(context, spans, left, plot, top, column) {
  const cell = plot / spans.length;
  context.font = `11px ${css("--sans")}`;
  context.textAlign = "center";
  context.fillStyle = css("--muted");
  const chosen = String(spans[column][0]);
  const x = left + (column + 0.5) * cell;
  const half = context.measureText(chosen).width / 2;
  const at = Math.min(Math.max(x, left + half), left + plot - half);
  for (const { column: t, step } of columnTicks(spans, plot)) {
    const middle = left + (t + 0.5) * cell;
    context.fillRect(middle - 0.5, top, 1, 4);
    const width = context.measureText(step).width;
    const position = Math.min(Math.max(middle, left + width / 2), left + plot - width / 2);
    if (Math.abs(position - at) > half + width / 2 + 6) context.fillText(step, position, top + 13);
  }
  context.fillStyle = css("--ink");
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x - 4, top + 5);
  context.lineTo(x + 4, top + 5);
  context.fill();
  context.font = `600 11px ${css("--sans")}`;
  context.fillText(chosen, at, top + 13);
}
