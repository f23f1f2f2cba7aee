// The rows of the heatmap: layers, folded by block where there are many, or the layers that a search finds.

const FOLD_FROM = 40; // rows

// Blocks and lists of blocks: names that end before or at a number, such as h and h.3.
function groupsOf(name) {
  const parts = name.split(".");
  const found = [];
  for (let k = 1; k < parts.length; k++) {
    if (/^\d+$/.test(parts[k]) || (/^\d+$/.test(parts[k - 1]) && k > 0)) found.push(parts.slice(0, k).join("."));
  }
  return found;
}

// [{ site, sites, group, depth, open, label }]: a row shows one site, or the members of a group.
// folds: by group, whether it is open, where someone chose; query: only what has this text.
function rowsOf(data, sites, folds, query) {
  const one = (s, depth, label) => ({ site: s, sites: [s], group: null, depth, label });
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) {
    const says = (s) => `${label(data.sites[s])} ${data.sites[s].module ?? ""}`.toLowerCase();
    return sites.filter((s) => words.every((word) => says(s).includes(word))).map((s) => one(s, 0, label(data.sites[s])));
  }
  if (sites.length <= FOLD_FROM) return sites.map((s) => one(s, 0, label(data.sites[s])));
  const members = new Map();
  for (const s of sites) for (const group of groupsOf(data.sites[s].name)) members.set(group, [...(members.get(group) ?? []), s]);
  for (const [group, inside] of members) if (inside.length < 2) members.delete(group);
  const openAtFirst = (group) => !/\.\d+$|^\d+$/.test(group); // lists are open, blocks are not
  const rows = [];
  const shown = new Set();
  for (const s of sites) {
    const name = data.sites[s].name;
    let [depth, above, closed] = [0, "", false];
    for (const group of groupsOf(name)) {
      if (!members.has(group)) continue;
      const open = folds.get(group) ?? openAtFirst(group);
      if (!shown.has(group)) {
        shown.add(group);
        const inside = members.get(group);
        const text = (above ? group.slice(above.length + 1) : group) + (openAtFirst(group) ? ".*" : "");
        rows.push({ site: inside[0], sites: inside, group, depth, open, label: text });
      }
      depth += 1;
      above = group;
      if (!open) {
        closed = true;
        break;
      }
    }
    if (!closed) {
      const full = label(data.sites[s]);
      rows.push(one(s, depth, above && full.startsWith(above + ".") ? full.slice(above.length + 1) : full));
    }
  }
  return rows;
}

// The row of a site: its own, or that of the closed group it is in.
function rowOf(rows, s) {
  const own = rows.findIndex((row) => row.group === null && row.site === s);
  return own >= 0 ? own : rows.findIndex((row) => row.group !== null && !row.open && row.sites.includes(s));
}

// encoder.layers.0.norm -> encoder…norm: both ends of a name say more than its middle.
function elide(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const cut = (keep) => text.slice(0, Math.floor(keep * 0.4)) + "…" + text.slice(text.length - Math.ceil(keep * 0.6));
  return cut(lastWhere(text.length - 1, (keep) => context.measureText(cut(keep)).width <= room));
}
