// The heatmap: layers by steps, one colour per cell; a pixel of several steps has the most striking.

const FADED = 0.8; // of the colour of the page

class Heatmap {
  // choose(row, column, byKey), hover(row, column, event) or hover(null), fold(row), enter(), zoom()
  constructor(box, axis, { choose, hover, fold, enter, zoom }) {
    Object.assign(this, { box, axis });
    this.canvas = box.querySelector("canvas");
    const plot = () => this.l && { left: this.l.left, width: this.l.plot };
    timeAxis(this.canvas, { plot, zoom, choose: () => null, click: false });
    timeAxis(axis, { plot: () => this.l && { left: this.l.left, width: this.axisWidth }, zoom, choose: (column) => choose(this.view.row, column) });
    this.canvas.addEventListener("click", (e) => {
      const cell = this.cellAt(e);
      if (!cell) return;
      if (cell[1] === null && this.view.rows[cell[0]].group !== null) fold(cell[0]);
      else choose(cell[0], cell[1] ?? this.view.column);
    });
    this.canvas.addEventListener("pointermove", (e) => {
      const cell = e.pointerType === "mouse" ? this.cellAt(e) : null;
      hover(cell && [cell[0], cell[1] ?? this.view.column], e);
    });
    this.canvas.addEventListener("pointerleave", () => hover(null));
    box.addEventListener("scrollend", () => (box.scrollTop = this.wholeRows(box.scrollTop)));
    box.addEventListener("keydown", (e) => {
      const { row, column, rows } = this.view;
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
      if (e.key === "Enter" && rows[row]?.group != null) fold(row);
      else if (e.key === "Enter") enter();
      else if (moves[e.key] && !e.altKey && !e.metaKey) choose(...moves[e.key], true);
      else return;
      e.preventDefault();
    });
  }

  // view: data, rows, row, column, statistic, values, ratios, scale, alerts; none: said where no row is;
  // lit: the row beside which all others are faded, or -1
  show(view) {
    this.view = view;
    this.draw(true);
  }

  // How striking a level is: what is not finite most, then what is farthest from the ordinary.
  get rank() {
    return this.view.scale.palette === "diverging" ? (level) => (level < 0 || level > 1 ? level : Math.abs(level - 0.5)) : (level) => level;
  }

  // The site of a row with the most striking level in a column.
  striking({ sites }, column) {
    const rank = (s) => this.rank(this.view.levels.get(s)[column]);
    return sites.reduce((best, s) => (rank(s) > rank(best) ? s : best), sites[0]);
  }

  // The most striking levels of a row: of each pixel those of its columns and of all its sites.
  levelsOf({ sites }, bounds) {
    const diverging = this.view.scale.palette === "diverging";
    const out = new Float32Array(bounds.length - 1).fill(LEVEL.missing);
    for (const s of sites) {
      const levels = this.view.levels.get(s);
      for (let x = 0; x < out.length; x++) {
        let now = out[x];
        for (let t = bounds[x]; t < bounds[x + 1]; t++) {
          const level = levels[t];
          if (!diverging || now < 0 || level < 0 || level > 1 || now > 1 ? level > now : Math.abs(level - 0.5) > Math.abs(now - 0.5)) now = level;
        }
        out[x] = now;
      }
    }
    return out;
  }

  layout(width) {
    const { data, rows } = this.view;
    const context = this.canvas.getContext("2d");
    context.font = `11px ${css("--mono")}`;
    const measure = (text) => context.measureText(text).width;
    for (const row of rows) {
      row.text = row.label;
      if (row.group === null) continue;
      const whole = `${row.group}${row.label.endsWith(".*") ? ".*" : ""} (${plural(row.sites.length, "layer")})`;
      row.text = (row.open ? "▾ " : "▸ ") + (measure(whole) < 160 ? whole : `${row.label} (${row.sites.length})`);
    }
    const widest = Math.max(60, ...data.curves.map((curve) => measure(curve.label)), ...rows.map((row) => measure(row.text) + 12 * row.depth));
    const left = Math.round(Math.min(widest + 14, width * (width < 560 ? 0.38 : 0.3), 300));
    const rowHeight = Math.max(14, Math.min(22, Math.floor(440 / rows.length)));
    this.box.style.setProperty("--row", `${rowHeight}px`);
    return { left, plot: width - left, rowHeight, height: rowHeight * Math.max(1, rows.length) };
  }

  // The cells alone, which change neither with the cursor nor with the labels.
  paint(width) {
    const { rows, scale } = this.view;
    const l = this.l;
    const ratio = window.devicePixelRatio || 1;
    const across = Math.max(1, Math.min(range.to - range.from, Math.round(l.plot * ratio)));
    const [none, wrong, card] = [rgbOf("--none"), rgbOf("--nonfinite"), rgbOf("--card")];
    const hatches = new Map([[LEVEL.nonfinite, []], [LEVEL.absent, []]]);
    const bounds = Int32Array.from({ length: across + 1 }, (_, x) => range.from + Math.floor((x * (range.to - range.from)) / across));
    const shown = rows.map((row) => this.levelsOf(row, bounds));
    this.picture = picture(across, Math.max(1, rows.length), (x, r) => {
      const level = shown.length ? shown[r][x] : LEVEL.missing;
      hatches.get(level)?.push([x, r]);
      return level === LEVEL.missing ? null : level === LEVEL.absent ? card : level === LEVEL.none ? none : level === LEVEL.nonfinite ? wrong : colourAt(scale.palette, level);
    }, this.picture);
    this.cells ??= document.createElement("canvas");
    const context = sized(this.cells, Math.round(width * ratio), Math.round(l.height * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.imageSmoothingEnabled = false;
    context.fillStyle = hatch(context, css("--muted"));
    context.fillRect(l.left, 0, l.plot, l.height);
    context.drawImage(this.picture, l.left, 0, l.plot, l.height);
    // Not by colour alone: non-finite cells are hatched, too.
    for (const [level, cells] of hatches) {
      context.fillStyle = level === LEVEL.absent ? hatch(context, css("--warning"), 2) : hatch(context, "rgba(255, 255, 255, 0.85)");
      context.beginPath();
      for (const [x, r] of cells) context.rect(l.left + (x / across) * l.plot, r * l.rowHeight, l.plot / across, l.rowHeight);
      context.fill();
    }
    context.fillStyle = css("--card");
    context.globalAlpha = FADED;
    for (let r = 0; this.view.lit >= 0 && r < rows.length; r++) if (r !== this.view.lit) context.fillRect(l.left, r * l.rowHeight, l.plot, l.rowHeight);
    context.globalAlpha = 1;
    for (let r = 1; r < rows.length; r++) context.fillRect(l.left, r * l.rowHeight - 0.5, l.plot, 1);
  }

  draw(anew) {
    const { data, rows, row, column } = this.view;
    const wide = this.canvas.clientWidth;
    if (anew || !this.cells || this.wide !== wide) {
      this.l = this.layout(wide);
      this.paint(wide);
      this.wide = wide;
    }
    const l = this.l;
    const { context, width } = fit(this.canvas, l.height);
    context.clearRect(0, 0, width, l.height);
    context.drawImage(this.cells, 0, 0, width, l.height);
    this.labels(context);
    if (!rows.length) {
      context.fillStyle = css("--ink");
      context.textAlign = "center";
      context.fillText(this.view.none, l.left + l.plot / 2, l.height / 2);
    }
    if (row >= 0) this.cursor(context, width);
    for (const alert of this.view.alerts) {
      if (alert.column < range.from || alert.column >= range.to) continue;
      // Beside the cell, which stays seen.
      markPath(context, alert.severity, xOf(alert.column, l.left, l.plot) - 8, (alert.row + 0.5) * l.rowHeight);
      context.lineWidth = 2;
      context.strokeStyle = css("--card");
      context.stroke();
      context.fillStyle = css(`--${alert.severity}`);
      context.fill();
    }
    this.drawAxis();
    Object.assign(this.canvas.dataset, { rows: rows.length, columns: data.columns, row, column, left: l.left }); // what tests read
  }

  cursor(context, width) {
    const l = this.l;
    const { row, column } = this.view;
    context.strokeStyle = css("--ink");
    context.lineWidth = 1;
    context.globalAlpha = 0.5;
    context.strokeRect(l.left + 0.5, row * l.rowHeight + 0.5, l.plot - 1, l.rowHeight - 1);
    context.globalAlpha = 1;
    if (column < range.from || column >= range.to) return;
    const [w, h] = [Math.max(l.plot / (range.to - range.from), 5), l.rowHeight];
    const inside = (at, size, room) => Math.min(Math.max(at, 1), room - size - 1);
    const x = inside(middleOf(column, l.left, l.plot) - w / 2, w, width);
    const y = inside(row * l.rowHeight, h, l.height);
    context.lineWidth = 4;
    context.strokeStyle = css("--card");
    context.strokeRect(x, y, w, h);
    context.lineWidth = 2;
    context.strokeStyle = css("--ink");
    context.strokeRect(x, y, w, h);
  }

  labels(context) {
    const { rows, row } = this.view;
    const { left, rowHeight } = this.l;
    context.textAlign = "left";
    rows.forEach(({ text, depth, group }, r) => {
      const [y, x] = [(r + 0.5) * rowHeight, 12 * depth];
      context.font = `${r === row ? "600 " : ""}11px ${css("--mono")}`;
      context.fillStyle = css(r === row ? "--accent" : group === null ? "--muted" : "--ink");
      context.fillText(elide(context, text, left - 12 - x), x, y);
    });
  }

  drawAxis() {
    const { context, width } = fit(this.axis, 24);
    context.clearRect(0, 0, width, 24);
    const bar = this.box.offsetWidth - this.box.clientWidth; // a scrollbar narrows the heatmap
    this.axisWidth = width - bar - this.l.left;
    stepAxis(context, this.view.data.spans, this.l.left, this.axisWidth, 0, this.view.column);
  }

  // [row, column]; the column is null on a label.
  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const row = Math.floor((event.clientY - box.top) / this.l.rowHeight);
    if (row < 0 || row >= this.view.rows.length) return null;
    if (x < this.l.left) return [row, null];
    const column = columnAt(x, this.l.left, this.l.plot);
    return column === null ? null : [row, column];
  }

  wholeRows(pixels) {
    return Math.round(pixels / this.l.rowHeight) * this.l.rowHeight;
  }

  // Scrolls the chosen row into the box, and never the page; to its upper part, which is likelier on the
  // screen, where a layer was not reached by keys.
  reveal(byKey = false) {
    const top = this.view.row * this.l.rowHeight;
    const { scrollTop, clientHeight } = this.box;
    if (!byKey) this.box.scrollTop = this.wholeRows(top - clientHeight / 4);
    else if (top < scrollTop) this.box.scrollTop = top - this.l.rowHeight;
    else if (top + this.l.rowHeight > scrollTop + clientHeight) {
      this.box.scrollTop = top + 2 * this.l.rowHeight - clientHeight;
    }
  }
}

function label(site) {
  return labelOf(site.name) + site.leaf + (site.phase ? ` ${site.phase}` : "");
}
