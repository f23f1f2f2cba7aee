// The address of what is shown: #layer=...&kind=...&step=...&view=..., so that a link restores it.

function writeLink() {
  const site = data.sites[chosen.site];
  const parts = { layer: site.name, kind: site.kind, step: data.spans[chosen.column][0], stat: chosen.statistic.id };
  if (data.b) parts.beside = chosen.beside;
  if (data.others.length > 1) parts.other = data.b.name;
  if (chosen.relative !== null) parts.relative = Number(chosen.relative);
  if (chosen.before !== null) parts.before = chosen.before === PEERS ? PEERS : data.spans[chosen.before][0];
  if (range.from > 0 || range.to < data.columns) parts.steps = `${data.spans[range.from][0]}:${data.spans[range.to - 1][1]}`;
  if (chosen.pins.size) parts.pins = [...chosen.pins].map((s) => s).join(".");
  if (chosen.view) parts.view = chosen.view;
  const hash = "#" + new URLSearchParams(Object.entries(parts)).toString();
  if (location.hash === hash) return;
  try {
    history.replaceState(null, "", hash);
  } catch (error) {
    if (error.name !== "SecurityError") throw error; // Safari, after a hundred of them in a while
  }
}

// The address follows once the user rests: to set it costs more than to draw.
const REST = 120; // ms
let writing = null;

function writeLinkSoon() {
  clearTimeout(writing);
  writing = setTimeout(writeLink, REST);
}

// What an address says, as changes of `chosen`; null where it says nothing.
function readLink() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (!["layer", "step", "view", "steps"].some((name) => parts.has(name))) return null;
  const changes = {};
  const [name, kind] = [parts.get("layer"), parts.get("kind")];
  const s = data.sites.findIndex((site) => site.name === name && (kind === null || site.kind === kind));
  if (s >= 0) Object.assign(changes, { site: s, kind: data.sites[s].plain });
  const column = parts.has("step") ? columnOf(Number(parts.get("step"))) : -1;
  if (column >= 0) changes.column = column;
  const statistic = offered().find(({ id }) => id === parts.get("stat"));
  if (statistic) changes.statistic = statistic;
  if (data.b && ["a", "b", "ratio"].includes(parts.get("beside"))) changes.beside = parts.get("beside");
  const other = data.others.findIndex(({ name }) => name === parts.get("other"));
  if (other >= 0) changes.other = other;
  if (parts.has("relative")) changes.relative = parts.get("relative") === "1";
  const before = parts.get("before");
  changes.before = before === null || before === PEERS ? before : nearestColumn(Number(before));
  if (parts.has("pins")) changes.pins = new Set(parts.get("pins").split(".").map(Number).filter((n) => n in data.sites));
  if (panels.has(parts.get("view"))) changes.view = parts.get("view");
  const [first, last] = (parts.get("steps") ?? "").split(":").map(Number);
  const ends = [columnOf(first), columnOf(last)];
  if (parts.has("steps") && ends[0] >= 0 && ends[1] >= ends[0]) Object.assign(range, { from: ends[0], to: ends[1] + 1 });
  return changes;
}
