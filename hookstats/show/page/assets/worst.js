// View: the layers that have dead channels, and the channels that differ most from their layer.

function deadLayers(data) {
  const found = [];
  data.sites.forEach((site, s) => {
    if (site.uneven || site.channels < 2) return;
    let [most, when, first, last] = [0, 0, -1, 0];
    for (let t = 0; t < data.columns; t++) {
      const n = data.dead[s * data.columns + t];
      if (!Number.isNaN(n)) last = n;
      if (n > 0 && first < 0) first = t;
      if (n > most) [most, when] = [n, t];
    }
    if (most) found.push({ s, most, when, first, last });
  });
  return found.sort((a, b) => b.last / data.sites[b.s].channels - a.last / data.sites[a.s].channels || b.most - a.most);
}

const layerText = (s) => `${label(data.sites[s])} ${data.sites[s].plain}`;

function goButton(text, changes) {
  const button = element("button", { type: "button", class: "go" }, text);
  button.addEventListener("click", () => goTo(changes));
  return button;
}

function outlierText(one) {
  if (one.ratio === null) return "NaN or infinity, alone among its layer";
  return one.ratio > 1 ? `rms ${number(one.ratio)} times the layer’s median` : `rms 1/${number(1 / one.ratio)} of the layer’s median`;
}

function fillWorst() {
  data.deadLayers ??= deadLayers(data);
  if (fillWorst.done) return;
  fillWorst.done = true;
  const parts = [];
  if (data.deadLayers.length) {
    parts.push(element("div", {}, element("h3", {}, `Layers with dead channels (${data.deadLayers.length})`),
      table(["Layer", "At the end", "At most", "First dead", "Channels"], data.deadLayers.slice(0, 200).map(({ s, most, when, first, last }) => [
        goButton(layerText(s), { site: s, column: when }), last, most, `step ${data.spans[first][0]}`, data.sites[s].channels]), [1, 2, 4], "Layers with dead channels")));
  }
  if (data.outliers.length) {
    parts.push(element("div", {}, element("h3", {}, "Channels unlike the rest of their layer"),
      table(["Layer", "Channel", "What", "Worst in"], data.outliers.map((one) => [
        goButton(layerText(one.site), { site: one.site, column: columnOf(one.step) }), one.channel, outlierText(one), `step ${one.step}`]), [1], "Worst channels")));
  }
  byId("worst-tables").replaceChildren(...parts);
}

addView({
  id: "worst",
  title: "Worst channels",
  has: () => {
    data.deadLayers ??= deadLayers(data);
    return data.deadLayers.length + data.outliers.length > 0;
  },
  fill: fillWorst,
  words: "worst-tables",
  rows: () => [["layer", "kind", "channel", "step", "what"],
    ...data.deadLayers.map(({ s, most, when }) => [label(data.sites[s]), data.sites[s].kind, null, data.spans[when][0], `${most} of ${data.sites[s].channels} channels dead`]),
    ...data.outliers.map((one) => [label(data.sites[one.site]), data.sites[one.site].kind, one.channel, one.step, outlierText(one)])],
});
