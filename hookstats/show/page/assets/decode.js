// Unpacks the payload: what the page knows of the run, as `data`.

const CODES = { missing: 0, dead: 1, nonfinite: 2, firstLevel: 3 }; // bytes of a channel image

// The first heatmap needs the early arrays, which come before the scripts: it is drawn while the browser
// still reads the rest. With `whole` all arrays are there at once, else once `data.rest()` is kept.
async function unpack(whole) {
  const all = bytesOf(byId("payload").textContent);
  const size = new DataView(all.buffer).getUint32(0, true);
  const head = await inflate(all.subarray(4, 4 + size));
  const length = new DataView(head.buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(head.subarray(4, 4 + length)));
  data.bytes = cut(head, 4 + length, data.lengths);
  data.columns = data.spans.length;
  data.channels = data.sites.map((site) => (site.uneven ? null : site.channels));
  data.starts = Object.create(null);
  // What is set beside, run B or each rank, has the same names in a separate object.
  data.others = data.others.map((about) => Object.assign(Object.create(data), about, { starts: Object.create(null) }));
  const arrays = Object.fromEntries(data.arrays.map((about) => {
    const [, n, name] = /^(?:b(\d+)\.)?(.*)$/.exec(about.name);
    const owner = n === undefined ? data : data.others[n];
    owner.starts[name] = about.starts;
    return [about.name, (bytes) => lazily(owner, name, () => decode(data, about, bytes))];
  }));
  const add = (packed) => Promise.all(Object.entries(packed).map(async ([name, bytes]) => arrays[name](await inflate(bytes))));
  await add(cut(all, 4 + size, data.blocks));
  data.rest = async () => {
    await parsed();
    await add(cut(bytesOf(byId("rest").textContent), 0, data.later));
  };
  if (whole) await data.rest();
  for (const one of data.statistics) one.of = SHARES[one.id] ?? ((d, i) => d[one.id][i]);
  placeSamples(data);
  return data;
}

function parsed() {
  return document.readyState === "loading" ? new Promise((kept) => addEventListener("DOMContentLoaded", kept)) : null;
}

function bytesOf(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Response(bytes).body.pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function cut(bytes, at, lengths) {
  const found = Object.create(null);
  for (const [name, length] of lengths) {
    found[name] = bytes.subarray(at, at + length);
    at += length;
  }
  return found;
}

function lazily(object, name, make) {
  Object.defineProperty(object, name, {
    configurable: true,
    get() {
      const value = make();
      Object.defineProperty(object, name, { value });
      return value;
    },
  });
}

// An array [sites, columns]; columns that share a number all have it. `bytes` are planes of S * K
// differences, the lowest bytes first.
function decode(data, { code, width, starts }, bytes) {
  const [S, T] = [data.sites.length, data.columns];
  const K = starts ? starts.length : T;
  const out = new (code === "log" || (code === "count" && width > 2) ? Float64Array : Float32Array)(S * T);
  const number = NUMBERS[code](data);
  const modulus = 256 ** width;
  const table = width > 2 ? null : Float64Array.from({ length: modulus }, (_, n) => number(n));
  for (let s = 0; s < S; s++) {
    let value = 0;
    for (let k = 0; k < K; k++) {
      const at = s * K + k;
      value += bytes[at];
      if (width > 1) value += bytes[S * K + at] << 8;
      if (table) value &= modulus - 1;
      else {
        for (let b = 2; b < width; b++) value += bytes[b * S * K + at] * 256 ** b;
        value %= modulus;
      }
      const x = table ? table[value] : number(value);
      if (starts) out.fill(x, s * T + starts[k], s * T + (k + 1 < K ? starts[k + 1] : T));
      else out[at] = x;
    }
  }
  return out;
}

// What a code stands for, see codes.py.
const NUMBERS = {
  count: () => (code) => code,
  known: () => (code) => (code ? code - 1 : NaN),
  log: (data) => {
    const [step, first] = data.log;
    return (code) => (code > 1 ? Math.exp((code - 2) * step + first) : code ? 0 : NaN);
  },
  share: (data) => (code) => (code === 0 ? NaN : code === data.shares - 1 ? 1 : (code - 1) / (data.shares - 2)),
  float: () => {
    const bits = new Uint32Array(1);
    const value = new Float32Array(bits.buffer);
    return (code) => {
      bits[0] = code << 16;
      return value[0];
    };
  },
};

// The columns around each sample that show it: those to which no other sample is nearer.
function placeSamples(data) {
  const places = data.samples.map(([, place]) => place);
  data.sampleOf = new Int32Array(data.columns);
  data.sampleFrom = new Int32Array(places.length).fill(data.columns);
  data.sampleTo = new Int32Array(places.length);
  data.sampleAt = new Int32Array(places.length);
  let first = 0;
  for (let t = 0, k = 0, j = 0; t < data.columns; t++) {
    const to = first + data.spans[t][2];
    const middle = (first + to - 1) / 2;
    first = to;
    while (k + 1 < places.length && Math.abs(places[k + 1] - middle) <= Math.abs(places[k] - middle)) k++;
    data.sampleOf[t] = k;
    data.sampleFrom[k] = Math.min(data.sampleFrom[k], t);
    data.sampleTo[k] = t + 1;
    for (; j < places.length && places[j] < to; j++) data.sampleAt[j] = t;
  }
}

// The steps that a number stands for, [first, last, recorded steps].
function reach(data, name, column) {
  const starts = data.starts[name];
  if (!starts) return data.spans[column];
  const low = lastWhere(starts.length - 1, (k) => starts[k] <= column);
  const end = (starts[low + 1] ?? data.columns) - 1;
  let steps = 0;
  for (let t = starts[low]; t <= end; t++) steps += data.spans[t][2];
  return [data.spans[starts[low]][0], data.spans[end][1], steps];
}

// [quantiles][samples] positions in 0..1 on the site's axis, NaN where there are none.
function quantilesOf(data, s) {
  const bytes = data.bytes["quantiles" + s];
  const rows = [];
  const count = data.samples.length;
  for (let at = 0; at < bytes.length; at += count) {
    let code = 0;
    rows.push(Array.from(bytes.subarray(at, at + count), (step) => {
      code = (code + step) & 255;
      return code ? (code - 1) / 254 : NaN;
    }));
  }
  return rows;
}
