// The incidents: each with its cause, and the later alerts folded below it.

const MARKS = { error: ["■", "Error"], warning: ["▲", "Warning"], note: ["●", "Note"] };

// The mark of a severity, as a path.
function markPath(context, severity, x, y) {
  context.beginPath();
  if (severity === "error") context.rect(x - 4, y - 4, 8, 8);
  else if (severity === "warning") for (const [dx, dy] of [[0, -5], [5, 4], [-5, 4]]) context.lineTo(x + dx, y + dy);
  else context.arc(x, y, 4, 0, 7);
  context.closePath();
}

function alertButton(data, n, go, helps = "", samples = "") {
  const alert = data.alerts[n];
  const [mark, word] = MARKS[alert.severity] ?? MARKS.note;
  // The message repeats the line above it: rule, step, kind and name.
  const said = alert.message.replace(/^.*?: step \d+(, since step \d+)?: /, "");
  const late = alert.since < alert.step;
  const what = said.split(`${alert.kind} of '${alert.name}' `).at(-1);
  const button = element("button", { type: "button", class: "alert", "data-alert": n },
    element("span", { class: `mark ${alert.severity}`, "aria-hidden": "true" }, mark),
    element("span", { class: "rule" }, element("span", { class: "hidden" }, word + ": "), alert.rule),
    element("span", { class: "when" }, (data.b && !data.ofRanks ? (alert.beside ? "B, " : "A, ") : "") + (late ? "since " : "") + `step ${alert.since}`),
    element("span", { class: "where" }, labelOf(alert.name) + (alert.kind === "scalar" ? "" : " " + alert.kind), shownFor(alert)),
    element("span", { class: "what" }, what + (late ? ` (noticed in step ${alert.step})` : "")),
    helps ? element("span", { class: "what helps" }, "What helps: " + helps) : null,
    samples ? element("span", { class: "what helps" }, samples[0].toUpperCase() + samples.slice(1)) : null);
  button.addEventListener("click", () => go(n));
  return button;
}

// What the page shows of an alert about a tensor that was not recorded itself.
function shownFor(alert) {
  const site = data.sites[alert.site];
  const own = !site || (site.name === alert.name && site.kind === alert.kind);
  return own ? null : element("span", { class: "muted" }, ` (shown: ${layerText(alert.site)})`);
}

function showAlerts(data, go) {
  const list = byId("alert-list");
  byId("main").classList.toggle("calm", !data.alerts.length);
  document.querySelector("[data-tools=alerts]").hidden = !data.alerts.length;
  byId("alerts-title").textContent = data.alerts.length ? `Incidents (${integer(data.incidents.length)})` : "Alerts";
  if (!data.alerts.length) {
    list.replaceChildren(element("p", { class: "muted" }, `The rules found nothing${data.b && !data.ofRanks ? " in either run" : ""}: no NaN or infinity, no explosion, no dead channels.`));
    return;
  }
  const items = data.incidents.map(({ alerts, inAll, helps, samples }) => {
    const [cause, ...others] = alerts;
    return element("li", {}, alertButton(data, cause, go, helps, samples), others.length
      ? element("details", {}, element("summary", {}, plural(inAll - 1, "later alert")),
        element("ol", {}, ...others.map((n) => element("li", {}, alertButton(data, n, go))))) : null);
  });
  list.replaceChildren(element("ol", {}, ...items));
  if (data.alertsInAll > data.alerts.length) {
    list.append(element("p", { class: "muted" }, `The first ${data.alerts.length} of ${integer(data.alertsInAll)} alerts are shown.`));
  }
}

function incidentRows() {
  return [["incident", "severity", "rule", "step", "since", "layer", "kind", "channel", "what"],
    ...data.incidents.flatMap(({ alerts }, i) => alerts.map((n) => data.alerts[n]).map((alert) => [
      i + 1, alert.severity, alert.rule, alert.step, alert.since, labelOf(alert.name), alert.kind, alert.channel, alert.message]))];
}

function markAlert(chosen) {
  document.querySelectorAll("[data-alert]").forEach((button) => {
    const current = Number(button.dataset.alert) === chosen;
    button.setAttribute("aria-current", String(current));
    if (current) button.closest("details")?.setAttribute("open", "");
  });
}
