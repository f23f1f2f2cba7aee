// A page that is served asks for what is new, and shows it where the user is.

const ASK_EVERY = 2000; // ms

function follow() {
  let known = document.documentElement.dataset.live; // the version that the page came with
  if (known === undefined) return;
  const badge = element("span", { class: "badge", role: "status" }, data.run.closed ? "ended" : "live");
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
    if (!data.run.closed) setTimeout(ask, ASK_EVERY);
  };
  if (!data.run.closed) setTimeout(ask, ASK_EVERY);
}

// The same layer, step, alert and pins in new data; who was at the last step goes on with it.
async function renew(text) {
  const fresh = await unpack(text, true);
  const [s, last, step] = [chosen.site, chosen.column === data.columns - 1, data.spans[chosen.column][0]];
  const nameOf = (one) => JSON.stringify([one.name, one.kind]);
  const known = new Map(fresh.sites.map((site, n) => [nameOf(site), n]));
  const moved = (n) => known.get(nameOf(data.sites[n]));
  const site = moved(s);
  const pins = new Set([...chosen.pins].map(moved).filter((n) => n !== undefined));
  // Alerts are sorted anew, the worst first.
  const idOf = (one) => JSON.stringify([one.step, one.name, one.kind, one.channel, one.rule]);
  const told = chosen.alert === null ? -1 : fresh.alerts.findIndex((one) => idOf(one) === idOf(data.alerts[chosen.alert]));
  const statistic = fresh.statistics.find(({ id }) => id === chosen.statistic.id);
  take(fresh);
  fillWorst.done = null;
  const column = last ? data.columns - 1 : nearestColumn(step);
  choose({ site: site ?? 0, pins, column, ...(statistic ? { statistic } : {}), alert: told < 0 ? null : told }, true);
}
