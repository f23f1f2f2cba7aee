// The channels of one site over the steps.

const groupStart = (g, count, groups) => Math.floor((g * count) / groups);

function paintChannels(chart) {
  const { data, s, column } = chart.view;
  const site = data.sites[s];
  if (site.uneven) return "the number of channels changes from step to step";
  if (!site.image) return site.channels === 1 ? "the whole tensor is one channel" : "no channels were recorded";
  const { context, plot } = chart;
  const [rows, count] = [site.image, data.samples.length];
  const bytes = data.bytes["channels" + s];
  const special = [null, rgbOf("--none"), rgbOf("--nonfinite")];
  const colour = (code) => code < CODES.firstLevel ? special[code]
    : colourAt("sequential", (code - CODES.firstLevel) / (data.channelLevels - 1));
  chart.missing();
  chart.drawSamples(picture(count, rows, (k, y) => colour(bytes[y * count + k])));
  context.fillStyle = hatch(context, "rgba(255, 255, 255, 0.85)");
  for (const [k, left, width] of chart.samples()) {
    for (let y = 0; y < rows; y++) {
      if (bytes[y * count + k] === CODES.nonfinite) context.fillRect(left, plot.y + (y / rows) * plot.h, width, plot.h / rows);
    }
  }
  chart.frame();
  context.fillStyle = css("--muted");
  context.textAlign = "right";
  const pace = [1, 2, 4, 8].map((m) => m * 2 ** Math.max(0, Math.floor(Math.log2((site.channels / plot.h) * 14)))).find((p) => (p / site.channels) * plot.h >= 14);
  for (let c = 0; c < site.channels; c += pace) {
    context.fillText(c, plot.x - 8, plot.y + ((c + 0.5) / site.channels) * plot.h);
  }
  // Beside it, the chosen step: bars as long as the rms, and a mark where a channel is dead.
  const k = data.sampleOf[column];
  const room = chart.width - plot.x - plot.w - 10;
  for (let y = 0; y < rows; y++) {
    const code = bytes[y * count + k];
    const top = plot.y + (y / rows) * plot.h;
    const h = Math.max(1, plot.h / rows - (plot.h / rows > 3 ? 1 : 0));
    if (code >= CODES.firstLevel) {
      context.fillStyle = css("--accent");
      context.fillRect(plot.x + plot.w + 8, top, Math.max(1, ((code - CODES.firstLevel + 1) / data.channelLevels) * room), h);
    } else if (code !== CODES.missing) {
      context.fillStyle = css(code === CODES.dead ? "--warning" : "--nonfinite");
      context.fillRect(plot.x + plot.w + 8, top, 6, h);
    }
  }
  return null;
}

const CHANNEL_WORDS = { [CODES.missing]: "not recorded", [CODES.dead]: "dead", [CODES.nonfinite]: "NaN or infinity" };

// The rms of a level, of the site's first and last one.
function levelValue(data, site, code) {
  const [low, high] = site.rms;
  return Number((low * (high / low) ** ((code - CODES.firstLevel) / (data.channelLevels - 1))).toPrecision(2));
}

function describeChannels({ data, s }, column, y) {
  const site = data.sites[s];
  const row = Math.min(site.image - 1, Math.floor(y * site.image));
  const from = groupStart(row, site.channels, site.image);
  const to = groupStart(row + 1, site.channels, site.image) - 1;
  const code = data.bytes["channels" + s][row * data.samples.length + data.sampleOf[column]];
  const several = to > from;
  const say = {
    [CODES.missing]: "not recorded",
    [CODES.dead]: several ? "all dead: every value is zero" : "dead: every value is zero",
    [CODES.nonfinite]: several ? "NaN or infinity in one of these channels" : "NaN or infinity",
  }[code] ?? `${several ? "greatest rms" : "rms"} about ${number(levelValue(data, site, code))}`;
  const where = several ? `channels ${from}–${to}` : `channel ${from}`;
  return `${where}, ${sampleWords(data, column)}\n${say}`;
}

function channelRows(data, s) {
  const site = data.sites[s];
  if (!site.image) return [["step"]];
  const rows = [["step", "first channel", "last channel", "greatest rms, about"]];
  const bytes = data.bytes["channels" + s];
  data.samples.forEach(([step], k) => {
    for (let row = 0; row < site.image; row++) {
      const code = bytes[row * data.samples.length + k];
      rows.push([step, groupStart(row, site.channels, site.image), groupStart(row + 1, site.channels, site.image) - 1,
        CHANNEL_WORDS[code] ?? levelValue(data, site, code)]);
    }
  });
  return rows;
}
