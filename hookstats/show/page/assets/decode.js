// Unpacks the payload: what the page knows of the run, as `data`.

const CODES = { missing: 0, dead: 1, nonfinite: 2, firstLevel: 3 }; // bytes of a channel image

async function unpack(text) {
  const all = bytesOf(text);
  const size = new DataView(all.buffer).getUint32(0, true);
  const head = await inflate(all.subarray(4, 4 + size));
  const length = new DataView(head.buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(head.subarray(4, 4 + length)));
  data.bytes = cut(head, 4 + length, data.lengths);
  const packed = cut(all, 4 + size, data.blocks);
  const blocks = Object.create(null);
  await Promise.all(Object.keys(packed).map(async (name) => (blocks[name] = await inflate(packed[name]))));
  data.columns = data.spans.length;
  data.channels = data.sites.map((site) => (site.uneven ? null : site.channels));
  data.starts = Object.create(null);
  // What is set beside, run B or each rank, has the same names in an object of its own.
  data.others = data.others.map((about) => Object.assign(Object.create(data), about, { starts: Object.create(null) }));
  for (const about of data.arrays) {
    const [, n, name] = /^(?:b(\d+)\.)?(.*)$/.exec(about.name);
    const owner = n === undefined ? data : data.others[n];
    owner.starts[name] = about.starts;
    lazily(owner, name, () => decode(data, about, blocks[about.name]));
  }
  for (const one of data.statistics) one.of = SHARES[one.id] ?? ((d, i) => d[one.id][i]);
  placeSamples(data);
  return data;
}

function bytesOf(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
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

// An array [sites, columns]; columns that share a number all have it.
function decode(data, { code, width, starts }, bytes) {
  const [S, T] = [data.sites.length, data.columns];
  const K = starts ? starts.length : T;
  const n = S * K;
  const out = new (code === "log" || (code === "count" && width > 2) ? Float64Array : Float32Array)(S * T);
  const number = NUMBERS[code](data);
  const modulus = 256 ** width;
  for (let s = 0; s < S; s++) {
    let value = 0;
    for (let k = 0; k < K; k++) {
      const at = s * K + k;
      for (let b = 0, unit = 1; b < width; b++, unit *= 256) value += bytes[b * n + at] * unit;
      if (value >= modulus) value -= modulus;
      const end = starts ? (k + 1 < K ? starts[k + 1] : T) : k + 1;
      out.fill(number(value), s * T + (starts ? starts[k] : k), s * T + end);
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
  for (let t = 0, k = 0; t < data.columns; t++) {
    const [from, to] = [first, first + data.spans[t][2]];
    first = to;
    const middle = (from + to - 1) / 2;
    while (k + 1 < places.length && Math.abs(places[k + 1] - middle) <= Math.abs(places[k] - middle)) k++;
    data.sampleOf[t] = k;
    data.sampleFrom[k] = Math.min(data.sampleFrom[k], t);
    data.sampleTo[k] = t + 1;
    places.forEach((place, j) => {
      if (place >= from && place < to) data.sampleAt[j] = t;
    });
  }
}

// The steps that a number stands for, [first, last, recorded steps].
function reach(data, name, column) {
  const starts = data.starts[name];
  if (!starts) return data.spans[column];
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= column) low = middle;
    else high = middle - 1;
  }
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
