// Numbers, steps and axes in words.

function number(x) {
  if (Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e-3 && size < 1e5 ? String(Number(x.toPrecision(3))) : x.toExponential(2).replace(/\.?0+e/, "e");
  return text.replace("e+", "e").replace(/-/g, "−");
}

function percent(x) {
  if (Number.isNaN(x)) return "–";
  if (x > 0 && x < 0.0005) return "<0.1 %";
  if (x < 1 && x > 0.9995) return ">99.9 %";
  return Number((100 * x).toPrecision(3)) + " %";
}

function integer(n) {
  return n < 1e6 ? Math.round(n).toLocaleString("en") : number(n);
}

function plural(n, one, many = one + "s") {
  return `${integer(n)} ${n === 1 ? one : many}`;
}

function stepsOf([first, last, n]) {
  return n === 1 ? `step ${first}` : `steps ${first}–${last}`;
}

// The greatest index up to `high` of which a test holds that holds of all before, too; 0 where it does of none.
function lastWhere(high, test) {
  let low = 0;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (test(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Powers of ten of either sign, and zero, that fit an asinh axis without touching.
function axisTicks([scale, lo, hi], pixels, gap) {
  const at = (x) => (Math.asinh(x / scale) - lo) / (hi - lo);
  const ticks = [];
  const add = (x) => {
    const position = at(x);
    const free = ticks.every((tick) => Math.abs(tick.position - position) * pixels >= gap);
    if (position >= 0 && position <= 1 && free) ticks.push({ value: x, position });
  };
  add(0);
  const top = Math.ceil(Math.log10(scale * Math.sinh(Math.max(hi, -lo))));
  const bottom = Math.floor(Math.log10(scale)) - 1;
  for (let e = top; e >= bottom; e--) for (const sign of [1, -1]) add(sign * 10 ** e);
  for (let e = top; e >= bottom; e--) for (const sign of [1, -1]) add(sign * 3 * 10 ** e);
  return ticks;
}

// Columns of `spans` to label below an axis of `pixels`: round steps where every column is one step.
function columnTicks(spans, pixels, gap = 64) {
  const wanted = Math.max(2, Math.floor(pixels / gap));
  const range = spans.at(-1)[1] - spans[0][0];
  const rough = Math.max(1, range / wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const pace = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
  const ticks = [];
  let next = Math.ceil(spans[0][0] / pace) * pace;
  spans.forEach(([first, last], t) => {
    if (last < next) return;
    ticks.push({ column: t, step: first <= next ? next : first });
    next = (Math.floor(last / pace) + 1) * pace;
  });
  return ticks;
}

// The name of a site as people read it: that of the root module is its own.
// The root module at a further width, or in its n-th call, has a suffix and no name.
const labelOf = (name) => (/^([[@]|$)/.test(name) ? data.root + name : name);

// What the suffix of a name says, if it has one.
function widthOf(name) {
  const width = /\[(\d+)ch\]$/.exec(name);
  if (width) return `calls with tensors of ${plural(Number(width[1]), "channel")}`;
  return name.endsWith("[whole]") ? "calls with tensors of further widths, as one channel" : null;
}
