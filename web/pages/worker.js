// Runs models in a worker, so that they never block the page. The page sends {id, task, ...arguments} to begin a task
// and {stop: id} to stop it. The worker reports with any number of messages {id, event, ...} and finally with
// {id, done} or {id, error}.
import {load} from './linnet.js';

let loading = null;  // the promise of the engine; null again after a failure
const engine = () => loading ??= load(fetch('linnet.wasm')).catch(error => {
  loading = null;
  throw error;
});
const models = new Map();  // by file and precision: {opened: promise of a Model, tells: reporters of its download}
const running = new Set();  // ids of the tasks in progress, except stopped ones
const wakes = new Map();  // by id of a task that waits for the page: continues the task, also when it is stopped

// A task awaits turn() to let the worker receive pending messages, such as a stop, before the task continues.
const channel = new MessageChannel();
const turns = [];  // functions that continue the waiting tasks
channel.port1.onmessage = () => turns.shift()();
const turn = () => new Promise(resolve => {
  turns.push(resolve);
  channel.port2.postMessage(0);
});

// The functions below report to the page by tell(event, data).

async function download(name, tell) {
  const response = await fetch(`models/${name}.safetensors`);
  if (!response.ok) throw new Error(`models/${name}.safetensors: ${response.status}`);
  const total = Number(response.headers.get('Content-Length')) || 0;
  const parts = [];
  let loaded = 0;
  for (const reader = response.body.getReader();;) {
    const {value, done} = await reader.read();
    if (done) break;
    parts.push(value);
    loaded += value.length;
    tell('loading', {loaded, total});
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function model(name, precision, tell) {
  const key = `${name} ${precision}`;
  if (!models.has(key)) {
    const tells = new Set();
    const opened = (async () => {
      const [linnet, bytes] = await Promise.all([engine(), download(name, (...all) => tells.forEach(one => one(...all)))]);
      return linnet.open(bytes, {precision, label: `${name}.safetensors`});
    })();
    opened.catch(() => models.delete(key));
    models.set(key, {opened, tells});
  }
  const {opened, tells} = models.get(key);
  tells.add(tell);
  try {
    return await opened;
  } finally {
    tells.delete(tell);
  }
}

// The fp32 tensors of a safetensors file, by name.
function tensors(bytes) {
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  return Object.fromEntries(Object.entries(header).filter(([, one]) => one.dtype === 'F32').map(([name, one]) =>
    [name, new Float32Array(bytes.slice(8 + size + one.data_offsets[0], 8 + size + one.data_offsets[1]).buffer)]));
}

// Limits the messages of a task to about 60 a second: a task reports only if due(), then awaits yield(), which lets the
// worker receive messages. yield() resolves to false if the page has stopped the task.
class Pace {
  #last = performance.now();

  constructor(id) {
    this.id = id;
  }

  due() {
    return performance.now() - this.#last >= 16;
  }

  async yield() {
    await turn();
    this.#last = performance.now();
    return running.has(this.id);
  }
}

const tasks = {
  /** Opens a model and reads some tokens, so that the browser compiles the code of a step before it is timed. */
  async warm({file, precision}, tell) {
    const state = (await model(file, precision, tell)).newState(1), begin = performance.now();
    for (let i = 0; i < 200 && performance.now() - begin < 300; ++i) state.step([0]);
    state.free();
    return {};
  },

  /** Completes an image `count` times, byte by byte. Its events {from, bytes [count][...], bits [count][...]} hold the
   *  bytes from index `from` on and their -log2 p. */
  async complete({file, precision, known, count, seed, temperature}, tell, id) {
    const net = await model(file, precision, tell);
    const pace = new Pace(id), total = net.imageBytes;
    const one = net.newState(1), head = one.read(known), state = one.fork(count);
    one.free();
    let outputs = Float32Array.from({length: count * net.outputs}, (_, i) => head[i % net.outputs]);
    let bytes = Array.from({length: count}, () => []), bits = Array.from({length: count}, () => []);
    let from = known.length;
    const begin = performance.now();
    try {
      for (let p = known.length; p < total; ++p) {
        const tokens = [];
        for (let i = 0; i < count; ++i) {
          const own = outputs.subarray(i * net.outputs, (i + 1) * net.outputs);
          const byte = net.drawByte(own, p, {image: i, seed, temperature});
          tokens.push(byte);
          bytes[i].push(byte);
          bits[i].push(net.byteBits(own, byte, p));
        }
        if (p + 1 < total) outputs = state.step(tokens);
        if (pace.due() || p + 1 === total) {
          tell('bytes', {from, bytes, bits});
          from = p + 1;
          bytes = bytes.map(() => []);
          bits = bits.map(() => []);
          if (!await pace.yield()) return {stopped: true};
        }
      }
    } finally {
      state.free();
    }
    return {microseconds: 1000 * (performance.now() - begin) / ((total - known.length) * count), stateBytes: net.stateBytes};
  },

  /** Computes the surprise of every byte of an image: -log2 p in bits, [imageBytes]; 0 for the first byte. */
  async surprise({file, precision, image}, tell) {
    const net = await model(file, precision, tell);
    const state = net.newState(1);
    const outputs = state.read(image.slice(0, -1), {every: true});
    state.free();
    return {bits: Float32Array.from(image, (byte, p) =>
      p === 0 ? 0 : net.byteBits(outputs.subarray((p - 1) * net.outputs, p * net.outputs), byte, p))};
  },

  /** Draws one image at full speed: events {position, bytes, microseconds, usedBytes}, where microseconds is the mean
   *  time per byte since the last event. usedBytes is the size of the state. The state of softmax attention, a cache,
   *  has room for the whole image; usedBytes counts only its part in use. */
  async race({file, precision, seed}, tell, id) {
    const net = await model(file, precision, tell);
    const pace = new Pace(id), state = net.newState(1), total = net.imageBytes;
    const first = net.drawByte(null, 0, {seed});
    let byte = first, bytes = [first], working = 0, since = 0;
    try {
      for (let p = 1; p < total; ++p) {
        const begin = performance.now();
        const outputs = state.step([byte]);
        byte = net.drawByte(outputs, p, {seed});
        working += performance.now() - begin;
        bytes.push(byte);
        if (pace.due() || p + 1 === total) {
          const share = net.stateKind === 'cache' ? p / net.positions : 1;
          tell('lap', {position: p + 1, bytes, microseconds: 1000 * working / (p - since), usedBytes: share * state.bytes});
          bytes = [];
          working = 0;
          since = p;
          if (!await pace.yield()) return {stopped: true};
        }
      }
      return {};
    } finally {
      state.free();
    }
  },

  /** Draws an image with a pause after each byte: events {position, byte, bits, stateBytes, sums, ...}, where sums
   *  [layers, heads, F, M] are the sums of phi(k) v^T in the state. The latest keys and values, at most eight of each,
   *  are not in the sums yet. */
  async watch({file, seed, milliseconds}, tell, id) {
    const net = await model(file, 'f32', tell);
    const pace = new Pace(id), state = net.newState(1), {layers, heads, query_dim: dim} = net.spec;
    let byte = net.drawByte(null, 0, {seed});
    try {
      for (let p = 1; p < net.imageBytes; ++p) {
        const outputs = state.step([byte]);
        byte = net.drawByte(outputs, p, {seed});
        const {state: floats} = tensors(state.save()), part = floats.length / layers;
        const sums = new Float32Array(layers * heads * dim * dim);
        for (let layer = 0; layer < layers; ++layer) {
          const begin = layer * part;
          sums.set(floats.subarray(begin, begin + heads * dim * dim), layer * heads * dim * dim);
        }
        tell('state', {position: p, byte, bits: net.byteBits(outputs, byte, p), sums, layers, heads, dim, stateBytes: state.bytes});
        await new Promise(resolve => setTimeout(resolve, milliseconds));
        if (!await pace.yield()) return {stopped: true};
      }
      return {stateBytes: state.bytes};
    } finally {
      state.free();
    }
  },

  /** Continues a text: events {text}. */
  async write({file, precision, prompt, tokens, seed, temperature, topP}, tell, id) {
    const net = await model(file, precision, tell), linnet = await engine();
    const pace = new Pace(id), state = net.newState(1);
    const decoder = new TextDecoder();
    const read = net.encode(prompt, {prompt: true});
    let logits = null, text = '', written = 0;
    try {
      for (let at = 0; at < read.length; at += 256) {
        logits = state.read(read.subarray(at, at + 256));
        if (pace.due() && !await pace.yield()) return {stopped: true};
      }
      const begin = performance.now();
      for (; written < tokens; ++written) {
        const token = linnet.choose(logits, written, {seed, temperature, topP});
        if (token === net.end) break;
        text += decoder.decode(net.tokenBytes(token), {stream: true});
        logits = state.step([token]);
        if (pace.due()) {
          tell('text', {text});
          text = '';
          if (!await pace.yield()) return {stopped: true};
        }
      }
      tell('text', {text: text + decoder.decode()});
      return {tokensPerSecond: 1000 * written / (performance.now() - begin), stateBytes: state.bytes};
    } finally {
      state.free();
    }
  },

  /** Hears phones in `samples`, or in the arrays of samples that arrive on `port` until the page stops the task: events
   *  {frames, phones, seconds, busy, stateBytes}. frames [count, bands] and phones are new since the last event. seconds
   *  is the length of the sound so far, busy the seconds of work that it took. */
  async listen({file, precision, samples, port}, tell, id) {
    const net = await model(file, precision, tell);
    const pace = new Pace(id), transcriber = net.transcriber(), piece = net.sampleRate / 10;
    const arrived = [];
    if (port) {
      port.onmessage = ({data}) => {
        arrived.push(data);
        wakes.get(id)?.();
      };
    } else {
      for (let at = 0; at < samples.length; at += piece) arrived.push(samples.subarray(at, at + piece));
    }
    // A frame has 25 ms and begins every 10 ms, so the last samples belong to frames that are not complete.
    const step = net.sampleRate / 100, {bands} = net.spec;
    let rest = new Float32Array(0), heard = 0, busy = 0, phones = [], frames = [];
    const report = () => {
      const all = new Float32Array(frames.reduce((sum, {length}) => sum + length, 0));
      let at = 0;
      for (const some of frames) {
        all.set(some, at);
        at += some.length;
      }
      // A transcriber has two states: one replaces the other when that has heard as much as the longest utterance in
      // training.
      tell('heard', {frames: all, phones, seconds: heard / net.sampleRate, busy: busy / 1000, stateBytes: 2 * net.stateBytes});
      [phones, frames] = [[], []];
    };
    try {
      while (port || arrived.length > 0) {
        if (arrived.length === 0 && running.has(id)) await new Promise(resolve => wakes.set(id, resolve));
        if (!running.has(id)) return {stopped: true};
        for (const sound of arrived.splice(0, port ? arrived.length : 1)) {
          const begin = performance.now();
          phones.push(...transcriber.feed(sound));
          const open = new Float32Array(rest.length + sound.length);
          open.set(rest);
          open.set(sound, rest.length);
          frames.push(net.frames(open));
          rest = open.slice(step * frames.at(-1).length / bands);
          heard += sound.length;
          busy += performance.now() - begin;
        }
        if (port || pace.due()) {
          report();
          if (!await pace.yield()) return {stopped: true};
        }
      }
      phones.push(...transcriber.finish());
      report();
      return {};
    } finally {
      port?.close();
      wakes.delete(id);
      transcriber.free();
    }
  },

  /** Writes second lines for a couplet's first line, the most likely first: {candidates: [{text, score, scores}],
   *  unknown}. */
  async couplets({file, precision, first, candidates}, tell) {
    const net = await model(file, precision, tell);
    const lines = net.couplets(first, {candidates});
    return {
      candidates: lines.map(({text, logProbability, scores}) => ({
        text, scores: [...scores],
        score: logProbability / Math.max(1, [...text].filter(one => /\p{L}/u.test(one)).length),
      })),
      unknown: lines.unknown,
    };
  },
};

onmessage = async ({data: {id, task, stop, ...given}}) => {
  if (stop !== undefined) {
    running.delete(stop);
    wakes.get(stop)?.();
    return;
  }
  running.add(id);
  try {
    const result = await tasks[task](given, (event, data) => postMessage({id, event, ...data}), id);
    postMessage({id, done: result});
  } catch (error) {
    postMessage({id, error: error.message});
  }
  running.delete(id);
};
