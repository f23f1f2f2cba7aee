// The views of many layers, one at a time: curves of chosen layers, flow by depth, worst channels.

const views = []; // { id, title, has(), rows(), of(), and draw(canvas), or fill() and words, the id of what it fills }

const WAYS = ["--accent", "--warning", "--note-2", "--error", "--note-3", "--note-4"];

// A view with a canvas draws(view), one without fills a node with words; has() says whether there is anything.
function addView(view) {
  views.push(view);
}

function setUpViews() {
  const tabs = byId("view-tabs");
  for (const view of views) {
    const tab = element("button", { type: "button", class: "tab", role: "tab", id: `tab-${view.id}`, "aria-controls": `view-${view.id}` }, view.title);
    tab.addEventListener("click", () => choose({ view: view.id }));
    tab.addEventListener("keydown", (e) => {
      const shown = views.filter((one) => one.has());
      const move = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (!move) return;
      const next = shown[(shown.indexOf(view) + move + shown.length) % shown.length];
      choose({ view: next.id });
      byId(`tab-${next.id}`).focus();
    });
    tabs.append(tab);
    register(view.id, view.title, { canvases: () => [view.draw ? byId(`canvas-${view.id}`) : pictureOf(byId(view.words))], rows: view.rows, overall: !view.draw, of: view.of });
  }
}

function drawViews(state) {
  const shown = views.filter((view) => view.has());
  byId("views").hidden = !shown.length;
  if (!shown.length) return;
  const now = shown.find((view) => view.id === chosen.view) ?? shown[0];
  for (const view of views) {
    const tab = byId(`tab-${view.id}`);
    tab.hidden = !shown.includes(view);
    tab.setAttribute("aria-selected", String(view === now));
    tab.tabIndex = view === now ? 0 : -1;
    byId(`view-${view.id}`).hidden = view !== now;
  }
  now.draw?.(byId(`canvas-${now.id}`), state);
  now.fill?.(state);
}

// The frame of a chart with a logarithmic axis: what the views have in common.
function logFrame(canvas, height, values, right) {
  const { context, width } = fit(canvas, height);
  context.clearRect(0, 0, width, height);
  const plot = { x: 62, y: 10, w: width - 62 - right, h: height - 40 };
  let [lo, hi] = [Infinity, 0];
  for (const x of values) if (x > 0 && x < Infinity) [lo, hi] = [Math.min(lo, x), Math.max(hi, x)];
  if (!(hi > 0)) return null;
  if (hi / lo < 1.5) [lo, hi] = [lo / 1.3, hi * 1.3];
  const [a, b] = [Math.log10(lo) - 0.03, Math.log10(hi) + 0.03];
  const y = (x) => plot.y + plot.h * (1 - (Math.log10(Math.max(x, lo)) - a) / (b - a));
  context.textAlign = "right";
  context.font = `11px ${css("--sans")}`;
  const taken = [];
  for (const tick of logTicks(a, b)) {
    const at = y(tick);
    if (taken.some((other) => Math.abs(other - at) < 15)) continue;
    taken.push(at);
    context.fillStyle = css("--line");
    context.fillRect(plot.x, Math.round(at), plot.w, 1);
    context.fillStyle = css("--muted");
    context.fillText(number(Number(tick.toPrecision(2))), plot.x - 8, at);
  }
  return { context, width, plot, y };
}

// Names at the right end of lines, the chosen one first, none over another.
function endLabels(context, labels, x, room, top, bottom) {
  const taken = [];
  context.textAlign = "left";
  for (const { text, y, colour, strong } of labels) {
    const at = Math.min(Math.max(y, top + 5), bottom - 5);
    if (taken.some((other) => Math.abs(other - at) < 13)) continue;
    taken.push(at);
    context.font = `${strong ? "600 " : ""}11px ${css("--mono")}`;
    context.fillStyle = colour;
    context.fillText(elide(context, text, room), x, at);
  }
}
