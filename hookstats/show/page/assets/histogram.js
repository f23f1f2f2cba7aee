// The histogram of one site over the steps, as colours or as ridgelines.

const NO_HISTOGRAM = "no histogram: there were no finite values, or no bins";

// The shade of a part of the axis in a sample.
const shadeOf = (data, s, bin, k) => data.bytes["hist" + s][bin * data.samples.length + k];

function paintHistogram(chart) {
  const { data, s, column } = chart.view;
  const axis = data.sites[s].axis;
  if (!axis) return NO_HISTOGRAM;
  if (chart.ridges) return paintRidges(chart);
  const { context, plot } = chart;
  const level = (bin, k) => shadeOf(data, s, bin, k);
  chart.valueAxis(axis, false);
  chart.missing();
  chart.drawSamples(picture(data.samples.length, data.bins, (k, y) => {
    const shade = level(data.bins - 1 - y, k);
    return shade ? colourAt("sequential", (shade - 1) / (data.levels - 1)) : null;
  }));
  chart.frame();
  // Beside it, the chosen step: bars as long as the colours are bright.
  const room = chart.width - plot.x - plot.w - 10;
  const h = plot.h / data.bins;
  context.fillStyle = css("--accent");
  for (let bin = 0; bin < data.bins; bin++) {
    const length = (level(bin, data.sampleOf[column]) / data.levels) * room;
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
  const shade = shadeOf(data, s, bin, data.sampleOf[column]);
  const share = shade ? (shade === 1 ? "0.01 % or less" : "about " + percent(Number(shareOf(data, shade).toPrecision(2)))) : "no value";
  return `${sampleWords(data, column)}\n${number(part(bin / data.bins))} to ${number(part((bin + 1) / data.bins))}: ${share}`;
}


// Ridgelines: the distribution of some of the shown steps, each a curve, the latest in front.
const RIDGES = 14;

function paintRidges(chart) {
  const { data, s, column } = chart.view;
  const { context, plot } = chart;
  const [x, bottom] = [plot.x, plot.y + plot.h];
  const all = chart.samples().map(([k]) => k).filter((k) => some(data, s * data.columns + data.sampleAt[k]));
  const now = data.sampleOf[column];
  const shown = all.filter((k, i) => k === now || i % Math.ceil(all.length / RIDGES) === 0);
  const room = Math.min(46, plot.h / 3);
  const pace = (plot.h - room - 14) / Math.max(1, shown.length - 1);
  context.font = `11px ${css("--sans")}`;
  shown.forEach((k, i) => {
    const base = plot.y + room + i * pace;
    const shares = Array.from({ length: data.bins }, (_, bin) => shareOf(data, shadeOf(data, s, bin, k)));
    const most = Math.max(...shares);
    const wide = plot.w / (data.bins - 1);
    context.beginPath();
    context.moveTo(x, base);
    shares.forEach((share, bin) => context.lineTo(x + bin * wide, base - (share / most) * room));
    context.lineTo(x + plot.w, base);
    context.fillStyle = css("--card");
    context.fill();
    context.fillStyle = `rgba(${css("--band")}, ${k === now ? 0.4 : 0.14})`;
    context.fill();
    context.strokeStyle = css(k === now ? "--ink" : "--accent");
    context.lineWidth = k === now ? 2 : 1;
    context.stroke();
    context.fillStyle = css(k === now ? "--ink" : "--muted");
    context.textAlign = "left";
    if (pace >= 11 || k === now || i % 3 === 0) context.fillText(data.samples[k][0], x + plot.w + 8, base - 4);
  });
  context.textAlign = "center";
  const axis = data.sites[s].axis;
  for (const { value, position } of axisTicks(axis, plot.w, 56)) {
    context.fillStyle = css("--muted");
    context.fillRect(x + position * plot.w - 0.5, bottom - 10, 1, 4);
    context.fillText(number(value), x + position * plot.w, bottom + 4);
  }
  chart.bare = true;
  return null;
}

function histogramRows(data, s) {
  const axis = data.sites[s].axis;
  if (!axis) return [["step"]];
  const part = (position) => axis[0] * Math.sinh(axis[1] + (axis[2] - axis[1]) * position);
  const rows = [["step", "from", "to", "about this share of the values"]];
  data.samples.forEach(([step], k) => {
    for (let bin = 0; bin < data.bins; bin++) {
      const shade = shadeOf(data, s, bin, k);
      if (shade) rows.push([step, part(bin / data.bins), part((bin + 1) / data.bins), Number(shareOf(data, shade).toPrecision(2))]);
    }
  });
  return rows;
}
