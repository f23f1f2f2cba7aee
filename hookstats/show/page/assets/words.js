// A panel of words as a picture: what stands on the page, drawn anew where the browser has laid it out.

const TALLEST = 12000; // CSS pixels; browsers have limits, and the CSV has the rest

// A canvas with the contents of a node: words, canvases, borders, and the boxes of a legend. What is
// scrolled away is on it; what is folded or hidden is not.
function pictureOf(node) {
  const root = document.documentElement;
  root.classList.add("pictured"); // nothing scrolls, nothing sticks; before the screen shows it, it is over
  try {
    const marks = [];
    markContents(marks, node);
    let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
    for (const { x, y, w, h } of marks) {
      [left, top] = [Math.min(left, Math.floor(x)), Math.min(top, Math.floor(y))];
      [right, bottom] = [Math.max(right, x + w), Math.max(bottom, y + h)];
    }
    const ratio = window.devicePixelRatio || 1;
    const canvas = element("canvas");
    const context = sized(canvas, Math.ceil((right - left) * ratio), Math.ceil(Math.min(bottom - top, TALLEST) * ratio));
    context.setTransform(ratio, 0, 0, ratio, -left * ratio, -top * ratio);
    for (const mark of marks) mark.draw(context, mark);
    return canvas;
  } finally {
    root.classList.remove("pictured");
  }
}

// Marks are { x, y, w, h, draw }: what is drawn, and where.
function markContents(marks, node) {
  for (const child of node.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) markWords(marks, child, getComputedStyle(node));
    if (child.nodeType !== Node.ELEMENT_NODE || child.matches(".hidden, details:not([open]) > :not(summary)")) continue;
    const { left: x, top: y, width: w, height: h } = child.getBoundingClientRect();
    if (!w) continue;
    markBox(marks, child, { x, y, w, h });
    if (child.tagName === "CANVAS") marks.push({ x, y, w, h, draw: (context) => context.drawImage(child, x, y, w, h) });
    else markContents(marks, child);
  }
}

// The hatched boxes of a legend, as the heatmap has them.
const HATCHED = {
  nonfinite: [() => css("--nonfinite"), (context) => hatch(context, "rgba(255, 255, 255, 0.85)")],
  absent: [(context) => hatch(context, css("--warning"), 2)],
  missing: [(context) => hatch(context, css("--muted"))],
};
const CLEAR = "rgba(0, 0, 0, 0)";

function markBox(marks, node, box) {
  const style = getComputedStyle(node);
  const fill = (colour) => (context, { x, y, w, h }) => {
    context.fillStyle = typeof colour === "function" ? colour(context) : colour;
    context.beginPath();
    if (style.borderRadius === "50%") context.arc(x + w / 2, y + h / 2, w / 2, 0, 7);
    else context.rect(x, y, w, h);
    context.fill();
  };
  const colours = (node.tagName === "I" && HATCHED[node.className]) || [style.backgroundColor];
  for (const colour of colours) if (colour !== CLEAR) marks.push({ ...box, draw: fill(colour) });
  const [top, right, bottom, left] = ["Top", "Right", "Bottom", "Left"].map((side) => parseFloat(style[`border${side}Width`]));
  const { x, y, w, h } = box;
  const line = (side, x, y, w, h) => w && h && marks.push({ x, y, w, h, draw(context) {
    context.fillStyle = style[`border${side}Color`];
    context.fillRect(x, Math.round(y), w, h);
  } });
  line("Top", x, y, w, top);
  line("Right", x + w - right, y, right, h);
  line("Bottom", x, y + h - bottom, w, bottom);
  line("Left", x, y, left, h);
}

// Word by word, as lines may break between them; a word that is broken itself, by character.
function markWords(marks, text, style) {
  const range = document.createRange();
  const mark = (from, to) => {
    range.setStart(text, from);
    range.setEnd(text, to);
    const [place, another] = range.getClientRects();
    if (another) for (let at = from; at < to; at++) mark(at, at + 1);
    else if (place) marks.push({ x: place.left, y: place.top, w: place.width, h: place.height, draw(context, { x, y }) {
      context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
      context.fillStyle = style.color;
      const word = text.data.slice(from, to);
      context.fillText(word, x, Math.round(y + context.measureText(word).fontBoundingBoxAscent));
    } });
  };
  for (const { index, 0: word } of text.data.matchAll(/\S+/g)) mark(index, index + word.length);
}
