// Colours of values: safe for colour-blind eyes. What is usual is as light as a light page, and as dark
// as a dark one.

function palette(stops, size = 256) {
  const rgb = stops.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return Array.from({ length: size }, (_, i) => {
    const x = (i / (size - 1)) * (rgb.length - 1);
    const k = Math.min(Math.floor(x), rgb.length - 2);
    return rgb[k].map((c, j) => Math.round(c + (rgb[k + 1][j] - c) * (x - k)));
  });
}

const PALETTES = {}; // by name, filled from the payload

let diverging = "diverging"; // of the theme
document.addEventListener("themechange", () => {
  diverging = document.documentElement.dataset.theme === "dark" ? "divergingDark" : "diverging";
});

// From pale to a colour of the sheet, per theme.
const shades = new Map();
document.addEventListener("themechange", () => shades.clear());
function shadesOf(name) {
  if (!shades.has(name)) shades.set(name, palette([css("--soft"), css(name)]));
  return shades.get(name);
}

function colourAt(name, x) {
  const colours = PALETTES[name === "diverging" ? diverging : name] ?? shadesOf(name);
  return colours[Math.max(0, Math.min(colours.length - 1, Math.round(x * (colours.length - 1))))];
}

// The value of a variable of the sheet; read once per theme.
const sheet = new Map();
document.addEventListener("themechange", () => sheet.clear());
function css(name) {
  if (!sheet.has(name)) sheet.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return sheet.get(name);
}

function rgbOf(name) {
  const hex = css(name);
  const long = hex.length === 4 ? "#" + [...hex.slice(1)].map((c) => c + c).join("") : hex;
  return [1, 3, 5].map((i) => parseInt(long.slice(i, i + 2), 16));
}

// A canvas of this size, empty; a new bitmap costs more than most drawings.
function sized(canvas, width, height) {
  const context = canvas.getContext("2d");
  if (canvas.width === width && canvas.height === height && context.reset) context.reset();
  else Object.assign(canvas, { width, height });
  return context;
}

// An image of w * h pixels; colour(x, y) is [r, g, b], or null for transparent.
function picture(w, h, colour, canvas = document.createElement("canvas")) {
  const context = sized(canvas, w, h);
  const image = context.createImageData(w, h);
  for (let y = 0, at = 0; y < h; y++) {
    for (let x = 0; x < w; x++, at += 4) {
      const c = colour(x, y);
      if (!c) continue;
      image.data[at] = c[0];
      image.data[at + 1] = c[1];
      image.data[at + 2] = c[2];
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

const tiles = new Map(); // of hatches, by how they look

function hatch(context, colour, width = 1) {
  const key = `${colour} ${width}`;
  if (!tiles.has(key)) tiles.set(key, hatched(colour, width));
  return context.createPattern(tiles.get(key), "repeat");
}

function hatched(colour, width) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  return tile;
}

// A canvas as sharp as the screen, as wide as its box; its context draws in CSS pixels.
function fit(canvas, height) {
  const width = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  const context = sized(canvas, Math.round(width * ratio), Math.round(height * ratio));
  canvas.style.height = height + "px";
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = `11px ${css("--sans")}`;
  context.textBaseline = "middle";
  context.imageSmoothingEnabled = false;
  return { context, width, height };
}
