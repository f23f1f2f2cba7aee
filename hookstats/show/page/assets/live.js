// A page that is served asks for what is new, and shows it where the user is.

const ASK_EVERY = 2000; // ms

function follow() {
  const version = document.documentElement.dataset.live;
  if (version === undefined) return;
  let known = null;
  const badge = element("span", { class: "badge", role: "status" }, "live");
  byId("subtitle").after(badge);
  const ask = async () => {
    try {
      const answer = await fetch(`data?after=${known}`, { cache: "no-store" });
      const text = await answer.text();
      if (text) await renew(text);
      known = answer.headers.get("X-Version");
      badge.textContent = data.run.closed ? "ended" : "live";
    } catch {
      badge.textContent = "not served any more";
    }
    if (!data.run.closed || known === null) setTimeout(ask, ASK_EVERY);
  };
  setTimeout(ask, ASK_EVERY);
}

// The same layer, step and pins in new data; who was at the last step goes on with it.
async function renew(text) {
  const fresh = await unpack(text);
  const [s, last, step] = [chosen.site, chosen.column === data.columns - 1, data.spans[chosen.column][0]];
  const nameOf = (one) => JSON.stringify([one.name, one.kind]);
  const known = new Map(fresh.sites.map((site, n) => [nameOf(site), n]));
  const moved = (n) => known.get(nameOf(data.sites[n]));
  const site = moved(s);
  const pins = new Set([...chosen.pins].map(moved).filter((n) => n !== undefined));
  const statistic = fresh.statistics.find(({ id }) => id === chosen.statistic.id);
  take(fresh);
  fillWorst.done = null;
  const column = last ? data.columns - 1 : nearestColumn(step);
  choose({ site: site ?? 0, pins, column, ...(statistic ? { statistic } : {}), alert: chosen.alert }, true);
}
