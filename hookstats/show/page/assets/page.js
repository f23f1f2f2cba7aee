// What begins when the page is loaded: the theme, and the data.

function theme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const button = byId("theme");
  const apply = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "☀ Light" : "☾ Dark";
    button.setAttribute("aria-label", `Switch to the ${dark ? "light" : "dark"} theme`);
    document.dispatchEvent(new Event("themechange"));
  };
  button.addEventListener("click", () => apply(root.dataset.theme !== "dark"));
  system.addEventListener("change", () => apply(system.matches));
  apply(system.matches);
}

// On paper the page is light, and laid out as wide as the paper, so that no picture is stretched.
function paper() {
  const root = document.documentElement;
  let screenTheme = null;
  const lay = (printing) => {
    if (printing) screenTheme ??= root.dataset.theme;
    root.classList.toggle("printing", printing);
    root.dataset.theme = printing ? "light" : (screenTheme ?? root.dataset.theme);
    if (!printing) screenTheme = null;
    document.dispatchEvent(new Event("themechange"));
  };
  addEventListener("beforeprint", () => lay(true));
  addEventListener("afterprint", () => lay(false));
}

theme();
paper();
// A link may be to any number.
unpack(location.hash.length > 1).then(start).catch((error) => {
  const old = typeof DecompressionStream === "undefined";
  byId("failure").textContent = old
    ? "This page needs a browser of 2023 or later (DecompressionStream)."
    : `This page could not be read: ${error}`;
  byId("failure").hidden = false;
  if (!old) throw error;
});
