// The axis of steps that all charts share: which columns are shown, zoom by drag, and one cursor.

const range = { from: 0, to: 1 }; // columns; `to` is not shown

const axes = []; // { box, plot(): { left, width } } of every chart over steps

const xOf = (column, left, width) => left + ((column - range.from) / (range.to - range.from)) * width;
const middleOf = (column, left, width) => xOf(column + 0.5, left, width);

function columnAt(x, left, width) {
  const column = range.from + Math.floor(((x - left) / width) * (range.to - range.from));
  return column < range.from || column >= range.to ? null : column;
}

// A chart over steps. plot() says where the columns are on the canvas; null while there are none.
// hover(column or null, event), choose(column), zoom(from, to) or zoom(null) for everything.
function timeAxis(canvas, { plot, hover, choose, zoom, click = true }) {
  const box = canvas.parentElement;
  box.classList.add("over-steps");
  const line = element("i", { class: "cursor", hidden: true });
  const brush = element("i", { class: "brush", hidden: true });
  box.append(line, brush);
  axes.push({ box, canvas, line, plot });
  const at = (event, clamped) => {
    const place = plot();
    if (!place) return null;
    const x = event.clientX - canvas.getBoundingClientRect().left;
    return columnAt(clamped ? Math.min(Math.max(x, place.left), place.left + place.width - 0.01) : x, place.left, place.width);
  };
  let begun = null;
  let dragged = false;
  canvas.addEventListener("pointerdown", (e) => {
    dragged = false;
    begun = e.button === 0 && e.pointerType !== "touch" && at(e) !== null ? { x: e.clientX, column: at(e) } : null;
  });
  canvas.addEventListener("pointermove", (e) => {
    if (begun && Math.abs(e.clientX - begun.x) > 6) {
      if (!dragged) canvas.setPointerCapture(e.pointerId);
      dragged = true;
      const [a, b] = [begun.column, at(e, true)].sort((x, y) => x - y);
      const { left, width } = plot();
      brush.hidden = false;
      brush.style.left = canvas.offsetLeft + xOf(a, left, width) + "px";
      brush.style.width = xOf(b + 1, left, width) - xOf(a, left, width) + "px";
    }
    const column = e.pointerType === "mouse" ? at(e) : null;
    showHover(column);
    hover?.(column, e);
  });
  canvas.addEventListener("pointerup", (e) => {
    brush.hidden = true;
    if (dragged) {
      const [a, b] = [begun.column, at(e, true)].sort((x, y) => x - y);
      zoom(a, b + 1);
    }
    begun = null;
  });
  canvas.addEventListener("pointerleave", () => {
    showHover(null);
    hover?.(null);
  });
  canvas.addEventListener("dblclick", () => zoom(null));
  canvas.addEventListener("click", (e) => {
    if (dragged) e.stopImmediatePropagation();
    else if (click && at(e) !== null) choose(at(e));
  });
}

// The same column in every chart.
function showHover(column) {
  for (const { canvas, line, plot } of axes) {
    const place = column === null || column < range.from || column >= range.to ? null : plot();
    line.hidden = !place;
    if (place) line.style.left = canvas.offsetLeft + middleOf(column, place.left, place.width) + "px";
  }
}

// Steps below a plot, and which of them is chosen.
function stepAxis(context, spans, left, width, top, column) {
  context.font = `11px ${css("--sans")}`;
  context.textAlign = "center";
  context.fillStyle = css("--muted");
  const shown = column >= range.from && column < range.to;
  const chosen = shown ? String(spans[column][0]) : "";
  const x = middleOf(column, left, width);
  const half = context.measureText(chosen).width / 2;
  const at = Math.min(Math.max(x, left + half), left + width - half);
  for (const { column: t, step } of columnTicks(spans.slice(range.from, range.to), width)) {
    const middle = middleOf(range.from + t, left, width);
    context.fillRect(middle - 0.5, top, 1, 4);
    const wide = context.measureText(step).width;
    const position = Math.min(Math.max(middle, left + wide / 2), left + width - wide / 2);
    if (!shown || Math.abs(position - at) > half + wide / 2 + 6) context.fillText(step, position, top + 13);
  }
  for (const t of gapsOf(spans)) {
    const edge = xOf(t, left, width);
    context.clearRect(edge - 2, top, 4, 7);
    for (const shift of [-3, 1]) context.fillText("/", edge + shift + 1, top + 3);
  }
  if (!shown) return;
  context.fillStyle = css("--ink");
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x - 4, top + 5);
  context.lineTo(x + 4, top + 5);
  context.fill();
  context.font = `600 11px ${css("--sans")}`;
  context.fillText(chosen, at, top + 13);
}

// A line through points [x, y], which breaks where there is null; a single point shows, too.
function polyline(context, points, colour, width, dash = []) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  points.forEach((point, k) => {
    if (!point) return;
    if (!points[k - 1]) context.moveTo(point[0] - 1, point[1]);
    context.lineTo(...point);
  });
  context.stroke();
  context.setLineDash([]);
}

// The shown columns before which more steps were not recorded than is usual.
function gapsOf(spans) {
  const columns = Array.from({ length: Math.max(0, range.to - range.from - 1) }, (_, k) => range.from + k + 1);
  const ways = columns.map((t) => spans[t][0] - spans[t - 1][1]);
  const usual = [...ways].sort((a, b) => a - b)[ways.length >> 1];
  return columns.filter((_, k) => ways[k] > 2 * usual);
}

// A line through the chosen step.
function cursorLine(context, column, left, width, top, height) {
  if (column < range.from || column >= range.to) return;
  const x = middleOf(column, left, width);
  for (const [colour, line] of [["--card", 3], ["--ink", 1]]) {
    context.strokeStyle = css(colour);
    context.lineWidth = line;
    context.globalAlpha = 0.75;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + height);
    context.stroke();
  }
  context.globalAlpha = 1;
}
