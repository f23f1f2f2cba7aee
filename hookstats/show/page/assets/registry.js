// Panels: whatever has a picture or numbers registers here once, and gets PNG, CSV and a link.

const panels = new Map(); // by id: { id, title, canvases, rows, overall, of }

// The figure or section with data-panel=id gets the tools. canvases(): what a PNG shows, one below
// the other; rows(): what a CSV has, the names of the columns first; overall: it is of all steps;
// of(): which of what there may be it shows, such as a layer.
function register(id, title, { canvases, rows, overall = false, of }) {
  panels.set(id, { id, title, canvases, rows, overall, of });
  const place = document.querySelector(`[data-tools="${id}"]`);
  const tool = (text, what, act) => {
    const button = element("button", { type: "button", class: "tool", "aria-label": `${what} of ${title}`, title: what }, text);
    button.addEventListener("click", act);
    return button;
  };
  const menu = element("details", { class: "menu" }, element("summary", { class: "tool", "aria-label": `Export ${title}`, title: "Export" }, "Export"), element("div", {},
    tool("PNG", "Picture", () => savePicture(panels.get(id))),
    tool("CSV", "Numbers", () => saveNumbers(panels.get(id))),
    tool("Link", "Link to this view", (e) => copyLink(id, e.currentTarget)),
  ));
  menu.addEventListener("keydown", (e) => {
    if (e.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  place.append(menu);
}

// A menu closes where another place is clicked.
document.addEventListener("click", (e) => {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(e.target)) menu.open = false;
});

function savePicture({ title, canvases, overall, of }) {
  const shown = canvases().filter((canvas) => canvas.width && (canvas.offsetParent !== null || !canvas.isConnected));
  if (!shown.length) return;
  const ratio = window.devicePixelRatio || 1;
  const [pad, head] = [12 * ratio, 30 * ratio];
  const out = document.createElement("canvas");
  out.width = Math.max(...shown.map((canvas) => canvas.width)) + 2 * pad;
  const below = (canvas) => (canvas.isConnected ? 0 : pad / 2); // a legend keeps off what it explains
  out.height = shown.reduce((sum, canvas) => sum + canvas.height + below(canvas), 0) + head + 2 * pad;
  const context = out.getContext("2d");
  context.fillStyle = css("--card");
  context.fillRect(0, 0, out.width, out.height);
  context.fillStyle = css("--ink");
  context.font = `600 ${13 * ratio}px ${css("--sans")}`;
  context.textBaseline = "middle";
  const about = [of ? `${title}: ${of()}` : title, document.title, ...(overall ? [] : [stepsOf(data.spans[chosen.column])])];
  context.fillText(about.join(" · "), pad, pad + head / 3, out.width - 2 * pad);
  let y = pad + head;
  for (const canvas of shown) {
    context.drawImage(canvas, pad, y);
    y += canvas.height + below(canvas);
  }
  out.toBlob((blob) => save(blob, [title, of?.()], "png"));
}

function saveNumbers({ title, rows, of }) {
  const text = rows().map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
  save(new Blob([text], { type: "text/csv" }), [title, of?.()], "csv");
}

const LONGEST = 120; // characters of a file's name

// Names are of strangers: none may become a formula of a spreadsheet.
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function save(blob, what, kind) {
  const url = URL.createObjectURL(blob);
  const name = [data.run.name, ...what].join(" ").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, LONGEST);
  const link = element("a", { href: url, download: `${name}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

async function copyLink(id, button) {
  chosen.view = id;
  writeLink();
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "In the address";
  }
  setTimeout(() => (button.textContent = said), 1500);
}
