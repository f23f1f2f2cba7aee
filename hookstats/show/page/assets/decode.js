// Unpacks the payload: what the page knows of the run, as `data`.

const CODES = { missing: 0, dead: 1, nonfinite: 2, firstLevel: 3 }; // bytes of a channel image

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  data.arrays = {};
  let at = 4 + size;
  for (const [name, length] of data.lengths) {
    data.arrays[name] = bytes.subarray(at, at + length);
    at += length;
  }
  for (const name of data.floats) data[name] = floats(data.arrays[name]);
  for (const one of data.statistics) one.of = SHARES[one.id] ?? ((d, i) => d[one.id][i]);
  data.dead = integers(data.arrays.dead);
  data.seen = data.arrays.seen;
  data.columns = data.spans.length;
  return data;
}

// High bytes, then low bytes, of 16-bit numbers.
function integers(bytes) {
  const n = bytes.length / 2;
  return Uint16Array.from({ length: n }, (_, i) => (bytes[i] << 8) | bytes[n + i]);
}

// The same, of bfloat16s: the upper half of a float32.
function floats(bytes) {
  const n = bytes.length / 2;
  const bits = new Uint32Array(n);
  for (let i = 0; i < n; i++) bits[i] = (bytes[i] << 24) | (bytes[n + i] << 16);
  return new Float32Array(bits.buffer);
}

// [quantiles][T] positions in 0..1 on the site's axis, NaN where there are none.
function quantilesOf(data, s) {
  const bytes = data.arrays["quantiles" + s];
  const rows = [];
  for (let at = 0; at < bytes.length; at += data.columns) {
    let code = 0;
    rows.push(Array.from(bytes.subarray(at, at + data.columns), (step) => {
      code = (code + step) & 255;
      return code ? (code - 1) / 254 : NaN;
    }));
  }
  return rows;
}
