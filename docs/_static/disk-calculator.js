// The calculator of guides/long.md: what a run takes on the disk.

// Bytes of a recorded step, measured; tests/project/test_disk_calculator.py holds them to what
// `watch` says of models. A histogram takes as many for each octave of its number of values, above
// the first octaves, whose bins are few.
const CHANNEL = 30;
const TENSOR = 80;
const ONE_IN = 16; // recorded steps, whose channels are kept
const TENSOR_OCTAVE = { bytes: 30, first: 6 };
const CHANNEL_OCTAVE = { bytes: 17, first: 5 };

const MAX_BYTES = 10 * 2 ** 30; // the default of `watch`

function histogram({ bytes, first }, values) {
  return bytes * Math.max(0.5, Math.log2(values) - first);
}

function bytesOfStep({ layers, tensors, channels, values, bins, channelBins }) {
  const sites = layers * tensors;
  const ofTensor = TENSOR + (bins ? histogram(TENSOR_OCTAVE, values * channels) : 0);
  const ofChannel = CHANNEL + (channelBins ? histogram(CHANNEL_OCTAVE, values) : 0);
  return sites * (ofTensor + (channels * ofChannel) / ONE_IN);
}

// As `watch` writes it.
function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  for (; bytes >= 1023.5 && power < units.length - 1; power++) bytes /= 1024;
  return `${bytes.toFixed(power && bytes < 9.95 ? 1 : 0)} ${units[power]}`;
}

const count = (n) => Number(n.toPrecision(2)).toLocaleString("en");

function calculate(form) {
  const asked = {};
  for (const { name, type, checked, valueAsNumber } of form.querySelectorAll("input")) {
    asked[name] = type === "checkbox" ? checked : valueAsNumber;
  }
  if (!form.checkValidity()) return "Each number must be positive.";
  const perStep = (bytesOfStep(asked) * asked.ranks) / asked.every;
  const steps = asked.hours * 3600 * asked.rate;
  const thinned = steps * perStep > MAX_BYTES;
  const limit = `the 10 GiB of max_bytes ${thinned ? "are full, and old steps are thinned," : "would be full"} after about ${count(MAX_BYTES / perStep)} steps`;
  return `About ${size(1000 * perStep)} per 1,000 steps, and ${size(steps * perStep)} in all; ${limit}.`;
}

for (const form of document.querySelectorAll("form.disk-calculator")) {
  const show = () => (form.querySelector("output").textContent = calculate(form));
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
}
