// The statistics one can choose are `data.statistics`, {id, label, scale, of}: how their values become
// colours. scale: log (magnitudes), signed (either sign, linear near zero) or share (0..1).

// Shares, made of the counts that the page has; all other statistics come as they are.
const SHARES = {
  dead: (d, i) => (deadIsKnown(d, i) ? d.dead[i] / channelsOf(d, i) : NaN),
  nonfinite: (d, i) => nonfinite(d, i) / (nonfinite(d, i) + d.count[i]),
};

// Not where channels change, nor where a step has its whole tensors alone.
const deadIsKnown = (d, i) => channelsOf(d, i) !== null && !Number.isNaN(d.dead[i]);
const channelsOf = (d, i) => d.channels[Math.floor(i / d.columns)];
const some = (d, i) => d.count[i] > 0;
const nonfinite = (d, i) => d.nan[i] + d.posinf[i] + d.neginf[i];

// The sites whose size a tensor of another kind is divided by: the weights of updates and gradients.
const OF_WEIGHT = { id: "ofweight", label: "rms ÷ rms of its weight", scale: "log", of: (d, i) => {
  const [s, t] = [Math.floor(i / d.columns), i % d.columns];
  const w = weightOf(d, s);
  return w === undefined ? NaN : d.rms[i] / d.rms[w * d.columns + t];
} };

function weightOf(d, s) {
  d.weights ??= new Map(d.sites.flatMap((site, w) => (site.plain === "param" ? [[site.name, w]] : [])));
  return ["update", "param_grad"].includes(d.sites[s].plain) ? d.weights.get(d.sites[s].name) : undefined;
}

// How many octaves are left between the greatest magnitude and what a format can hold.
const FORMATS = { float16: 65504, float8_e5m2: 57344, float8_e4m3fn: 448 };
const HEADROOM = Object.entries(FORMATS).map(([name, most]) => ({
  id: "headroom-" + name, label: `octaves below the limit of ${name}`, scale: "signed", of: (d, i) => Math.log2(most / d.amax[i]),
}));

// The statistic of what the page is about (A), of what is set beside it (B), or their ratio.
function besideOf(statistic) {
  if (!data.b || chosen.beside === "a") return statistic;
  const of = (d, i, site) => statistic.of(d.b, i, site);
  if (chosen.beside === "b") return { ...statistic, of };
  return { ...statistic, scale: "ratio", label: `${statistic.label}, ${besideNames().ratio}`, of: (d, i, site) => statistic.of(d.b, i, site) / statistic.of(d, i, site) };
}

// What the shown numbers are made of.
const sources = () => (!data.b || chosen.beside === "a" ? [data] : chosen.beside === "b" ? [data.b] : [data, data.b]);

// What each choice of `chosen.beside` is called; `short` is B where room is scarce.
function besideNames() {
  if (data.ofRanks) return { a: "all ranks", b: data.b.name, ratio: `${data.b.name} ÷ all`, short: data.b.name };
  return { a: `A: ${data.run.name}`, b: `B: ${data.b.name}`, ratio: "B ÷ A", short: "B" };
}

// What can be chosen for the sites of a kind.
function offered(kind = chosen.kind) {
  const weighed = data.sites.some((site, s) => site.plain === kind && weightOf(data, s) !== undefined);
  return [...data.statistics, ...(weighed ? [OF_WEIGHT] : []), ...HEADROOM];
}

// What a cell is, where it is no number on the scale; numbers are places in 0..1.
const LEVEL = { missing: -3, absent: -2, none: -1, nonfinite: 9 };

// What there is of each column of a site, of what the page is about or what is set beside.
const STATE = { finite: 0, nonfinite: 1, absent: 2, missing: 3 };
const stateOf = new WeakMap();

function statesOf(d, s) {
  if (!stateOf.has(d)) stateOf.set(d, []);
  return (stateOf.get(d)[s] ??= findStates(d, s));
}

function findStates(d, s) {
  const { seen, nan, posinf, neginf } = d;
  const states = new Uint8Array(d.columns); // finite
  for (let t = 0, i = s * d.columns; t < d.columns; t++, i++) {
    if (!seen[i]) states[t] = STATE.missing;
    else if (nan[i] + posinf[i] + neginf[i] > 0) states[t] = STATE.nonfinite;
  }
  findAbsent(d, s, states);
  return states;
}

// A gradient is absent, not missing, where its layer ran and others of its kind came.
function findAbsent(d, s, states) {
  const { plain, phase, name } = d.sites[s];
  if (!plain.includes("grad") || !states.includes(STATE.missing)) return;
  const owner = plain === "param_grad" ? name.slice(0, Math.max(0, name.lastIndexOf("."))) : name;
  const seenBy = (test) => d.sites.flatMap((site, k) => (site.phase === phase && test(site) ? [d.seen.subarray(k * d.columns, (k + 1) * d.columns)] : []));
  const [peers, outputs] = [seenBy((site) => site.plain === plain), seenBy((site) => site.plain === "output" && site.name === owner)];
  states.forEach((state, t) => {
    if (state !== STATE.missing || (outputs.length && !outputs.some((seen) => seen[t]))) return;
    if (peers.some((seen) => seen[t])) states[t] = STATE.absent;
  });
}

const unseenText = (d, s, t) => (statesOf(d, s)[t] === STATE.absent ? "no gradient came" : "not recorded");

// What values are compared with, instead of the steps before one: the other layers in the same step.
const PEERS = "layers";

// By site: `values` [T] and `levels`, the places on `scale`, which all sites share, or one of LEVEL, of
// which `special` has the names that there are: zeros are "none" on a log scale. Where `relative`, `usual` has the logarithm of what the
// site's values are compared with: a number, the site's median of the columns before `before`, where it
// has any, or of all for null; or for PEERS, by column, the median of all sites.
function valuesOf(data, sites, statistic, relative, before) {
  const T = data.columns;
  const states = new Map(sites.map((s) => {
    const [one, ...others] = sources().map((d) => statesOf(d, s));
    return [s, others.length ? one.map((state, t) => Math.max(state, others[0][t])) : one];
  }));
  const stored = data.statistics.includes(statistic) && !SHARES[statistic.id];
  const values = new Map(sites.map((s) => {
    if (stored) return [s, data[statistic.id].subarray(s * T, s * T + T)];
    const [row, state] = [new Float64Array(T), states.get(s)];
    for (let t = 0, i = s * T; t < T; t++, i++) row[t] = state[t] < STATE.absent ? statistic.of(data, i, data.sites[s]) : NaN;
    return [s, row];
  }));
  const rows = [...values.values()];
  const usual = relative ? usualOf(values, before, T) : undefined;
  const scale = relative ? ratioScale(sizesOf(rows, (x, r, t) => Math.log10(x) - usualAt(usual.get(sites[r]), t))) : chooseScale(rows, statistic.scale, statistic.id);
  const levels = new Map(sites.map((s) => {
    const [row, level, own, stateOfSite] = [values.get(s), new Float32Array(T), usual?.get(s), states.get(s)];
    for (let t = 0; t < T; t++) {
      const [x, state] = [row[t], stateOfSite[t]];
      if (state === STATE.missing) level[t] = LEVEL.missing;
      else if (state === STATE.absent) level[t] = LEVEL.absent;
      else if (state === STATE.nonfinite && statistic.id !== "nonfinite") level[t] = LEVEL.nonfinite;
      else if (Number.isNaN(x)) level[t] = LEVEL.missing;
      else if (x === 0 && (scale.zero || relative)) level[t] = LEVEL.none;
      else level[t] = Math.min(Math.max(scale.at(relative ? Math.log10(x) - usualAt(own, t) : x), 0), 1);
    }
    return [s, level];
  }));
  const special = Object.keys(LEVEL).filter((name) => sites.some((s) => levels.get(s).includes(LEVEL[name])));
  return { values, usual, scale, levels, special };
}

function usualOf(values, before, T) {
  if (before === PEERS) {
    const rows = [...values.values()];
    const medians = Float64Array.from({ length: T }, (_, t) => Math.log10(medianOf(Float64Array.from(rows, (row) => row[t]))));
    return new Map([...values.keys()].map((s) => [s, medians]));
  }
  const median = (row) => (before === null ? NaN : medianOf(row.subarray(0, before))) || medianOf(row);
  return new Map([...values].map(([s, row]) => [s, Math.log10(median(row))]));
}

const usualAt = (usual, t) => (typeof usual === "number" ? usual : usual[t]);

// The median of the positive numbers of a row; of a long one, of some at equal distances.
function medianOf(row) {
  const pace = Math.max(1, Math.floor(row.length / 256));
  const some = [];
  for (let t = 0; t < row.length; t += pace) if (row[t] > 0 && row[t] < Infinity) some.push(row[t]);
  if (!some.length && pace > 1) return quantile(Float64Array.from(row.filter((x) => x > 0 && x < Infinity)).sort(), 0.5);
  return quantile(Float64Array.from(some).sort(), 0.5);
}

function quantile(sorted, q) {
  return sorted.length ? sorted[Math.round((sorted.length - 1) * q)] : NaN;
}

// The magnitudes that are not zero, ascending, of what there is of(value, row, column): of long runs
// some at equal distances.
function sizesOf(rows, of = (x) => x) {
  const total = rows.reduce((sum, row) => sum + row.length, 0);
  const pace = Math.max(1, Math.floor(total / 50000));
  const found = [];
  let next = 0;
  rows.forEach((row, r) => {
    for (; next < row.length; next += pace) {
      const size = Math.abs(of(row[next], r, next));
      if (size > 0 && size < Infinity) found.push(size);
    }
    next -= row.length;
  });
  return Float64Array.from(found).sort();
}

function greatestOf(rows) {
  let greatest = 0;
  for (const row of rows) {
    for (let t = 0; t < row.length; t++) {
      const size = Math.abs(row[t]);
      if (size > greatest && size < Infinity) greatest = size;
    }
  }
  return greatest;
}

// The nearest of ..., 1, 2, 5, 10, ..., or the next one above.
const NEAREST = [Math.SQRT2, Math.sqrt(10), Math.sqrt(50), 10];
const ABOVE = [1, 2, 5, 10].map((most) => most * 1.03); // less than a colour
function rounded(x, bounds = NEAREST) {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10][bounds.findIndex((most) => x / power <= most)] * power;
}

// at(x): 0..1, the colour of a value; ticks: values to write below the colour bar, the first ones first
// where room is short; place(x): where a value lies on the bar, if not at its colour.
function chooseScale(values, kind, id) {
  if (kind === "ratio") {
    const { at, ticks, text, ...scale } = ratioScale(sizesOf(values, Math.log10));
    return { ...scale, at: (x) => at(Math.log10(x)), ticks: ticks.map((x) => 10 ** x), text: (x) => text(Math.log10(x)) };
  }
  if (kind === "share") {
    // None is pale, and the least share is told from none; of what is not finite each is harm.
    const [palette, least] = id === "nonfinite" ? ["--nonfinite", 0.65] : ["--warning", 0.1];
    const at = (x) => (x > 0 ? least + (1 - least) * x : 0);
    return { palette, at, place: (x) => x, ticks: [0, 1, 0.5, 0.25, 0.75], text: percent };
  }
  const sizes = sizesOf(values);
  const hi = rounded(greatestOf(values) || 1, ABOVE); // the extremes are what one looks for: no colour is theirs and others'
  if (kind === "log") {
    const least = Math.max(Math.min(quantile(sizes, 0.005), hi / 2), hi * 1e-12) || hi / 10;
    const lo = 1 / rounded(1 / least, ABOVE);
    const [a, b] = [Math.log10(lo), Math.log10(hi)];
    const at = (x) => (Math.log10(x) - a) / (b - a);
    return { palette: "sequential", at, ticks: logTicks(a, b), text: number, zero: true };
  }
  const linear = Math.max(quantile(sizes, 0.25), hi * 1e-4) || hi / 10;
  const reach = Math.asinh(hi / linear);
  const at = (x) => 0.5 + Math.asinh(x / linear) / reach / 2;
  const middle = rounded(linear * Math.sinh(reach / 2));
  const ticks = [0, -hi, hi, -middle, middle];
  return { palette: "diverging", at, ticks, text: number };
}

function logTicks(a, b) {
  const pace = Math.max(1, Math.ceil((b - a) / 6));
  const ticks = [10 ** b, 10 ** a];
  for (let e = Math.ceil(a); e <= b; e += pace) ticks.push(10 ** e);
  if (b - a < 3) for (let e = Math.floor(a); e <= b; e++) ticks.push(3 * 10 ** e);
  return ticks.filter((x) => x >= 10 ** a && x <= 10 ** b);
}

// sizes: of the ratios' logarithms. The scale reaches to the greatest; it is linear up to what most
// ratios have, and logarithmic beyond, so that an extreme leaves the others their colours.
function ratioScale(sizes) {
  const reach = Math.log10(rounded(Math.max(10 ** (sizes.at(-1) ?? 0), 2), ABOVE));
  const linear = Math.min(Math.max(quantile(sizes, 0.9) || 0, reach / 1000), reach);
  const most = Math.asinh(reach / linear);
  const at = tabulated((x) => 0.5 + Math.asinh(x / linear) / most / 2, reach);
  const text = (x) => "×" + number(Number((10 ** x).toPrecision(2)));
  const between = 10 ** (linear * Math.sinh(most / 2));
  const middle = Math.log10(between < Math.SQRT2 ? 1 + rounded(between - 1) : rounded(between));
  return { palette: "diverging", at, ticks: [0, -reach, reach, -middle, middle], text };
}

// A function of -most..most from a table, as fine as colours are: asinh takes long for a million cells.
function tabulated(of, most) {
  const half = 1 << 14;
  const table = new Float32Array(2 * half + 1);
  for (let k = -half; k <= half; k++) table[half + k] = of((k / half) * most);
  return (x) => table[half + Math.round(Math.min(Math.max(x / most, -1), 1) * half)];
}
