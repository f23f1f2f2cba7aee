// The statistics one can choose are `data.statistics`, {id, label, scale, of}: how their values become
// colours. scale: log (magnitudes), signed (either sign, linear near zero) or share (0..1).

// Shares, made of the counts that the page has; all other statistics come as they are.
const SHARES = {
  dead: (d, i, site) => (deadIsKnown(d, i, site) ? d.dead[i] / site.channels : NaN),
  nonfinite: (d, i) => nonfinite(d, i) / (nonfinite(d, i) + d.count[i]),
};

// Not where channels change, nor where a step has its whole tensors alone.
const deadIsKnown = (d, i, site) => !site.uneven && d.dead[i] !== 0xffff;
const some = (d, i) => d.count[i] > 0;
const nonfinite = (d, i) => d.nan[i] + d.posinf[i] + d.neginf[i];

// Values [rows][T] of the sites, and the scale they share.
function valuesOf(data, sites, statistic, relative) {
  const values = sites.map((s) =>
    Float64Array.from({ length: data.columns }, (_, t) => {
      const i = s * data.columns + t;
      return data.seen[i] ? statistic.of(data, i, data.sites[s]) : NaN;
    }));
  if (!relative) return { values, scale: chooseScale(values, statistic.scale) };
  const ratios = values.map((row) => {
    const usual = median(row.filter((x) => x > 0 && Number.isFinite(x)));
    return row.map((x) => (x > 0 ? Math.log10(x / usual) : NaN));
  });
  return { values, ratios, scale: ratioScale(ratios) };
}

function median(values) {
  return quantile(Array.from(values).sort((a, b) => a - b), 0.5);
}

function quantile(sorted, q) {
  return sorted.length ? sorted[Math.round((sorted.length - 1) * q)] : NaN;
}

// at(x): 0..1, where a value lies on the colour bar; ticks: values to write below it.
function chooseScale(values, kind) {
  if (kind === "share") {
    const at = (x) => x;
    return { palette: "sequential", at, ticks: [0, 0.25, 0.5, 0.75, 1], text: percent, zero: true };
  }
  const finite = values.flatMap((row) => Array.from(row).filter(Number.isFinite));
  const sizes = finite.map(Math.abs).filter((x) => x > 0).sort((a, b) => a - b);
  // The rare extremes share the last colour, or one explosion would leave the rest alike.
  const hi = Math.max(quantile(sizes, 0.995), quantile(sizes, 0.5)) || 1;
  if (kind === "log") {
    const lo = Math.max(Math.min(quantile(sizes, 0.005), hi / 2), hi * 1e-12) || hi / 10;
    const [a, b] = [Math.log10(lo), Math.log10(hi)];
    const at = (x) => (Math.log10(x) - a) / (b - a);
    return { palette: "sequential", at, ticks: logTicks(a, b), text: number, zero: true, clipped: sizes.at(-1) > hi };
  }
  const linear = Math.max(quantile(sizes, 0.25), hi * 1e-4) || hi / 10;
  const reach = Math.asinh(hi / linear);
  const at = (x) => 0.5 + Math.asinh(x / linear) / reach / 2;
  const middle = linear * Math.sinh(reach / 2);
  const ticks = [0, -hi, hi, -middle, middle];
  return { palette: "diverging", at, ticks, text: number, clipped: sizes.at(-1) > hi };
}

function logTicks(a, b) {
  const pace = Math.max(1, Math.ceil((b - a) / 6));
  const ticks = [10 ** b, 10 ** a];
  for (let e = Math.ceil(a); e <= b; e += pace) ticks.push(10 ** e);
  if (b - a < 3) for (let e = Math.floor(a); e <= b; e++) ticks.push(3 * 10 ** e);
  return ticks.filter((x) => x >= 10 ** a && x <= 10 ** b);
}

function ratioScale(ratios) {
  const sizes = ratios.flatMap((row) => Array.from(row).filter(Number.isFinite).map(Math.abs));
  const reach = Math.max(quantile(sizes.sort((a, b) => a - b), 0.99) || 0, Math.log10(2));
  const at = (x) => 0.5 + x / reach / 2;
  const text = (x) => "×" + number(Number((10 ** x).toPrecision(2)));
  return { palette: "diverging", at, ticks: [0, -reach, reach, -reach / 2, reach / 2], text, clipped: true };
}
