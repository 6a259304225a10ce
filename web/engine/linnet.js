// linnet in JavaScript: trained models in the browser and in Node, by linnet.wasm.
//
//   import {load} from './linnet.js';
//   const linnet = await load(fetch('linnet.wasm'));
//   const model = linnet.open(await (await fetch('digits.safetensors')).arrayBuffer(), {precision: 'int8'});
//   const state = model.newState();
//   const outputs = state.step([0]);              // the head's outputs for the next byte
//   const byte = model.drawByte(outputs, 1, {seed: 7});
//
// linnet.d.ts has the types. A Model or State owns memory of the WebAssembly module. free() releases this memory at
// once; without free(), it is released when JavaScript collects the object. A call blocks its thread, so pages call
// from a worker. Callbacks must not call linnet.

const STATUS = ['', 'input', 'runtime', 'memory', 'internal', 'cancelled'];
const STATE_KINDS = ['none', 'constant', 'cache', 'tokens'];
const ENOSYS = 52;  // WASI's errno for a function that does not exist
const decode = bytes => new TextDecoder('utf-8', {ignoreBOM: true}).decode(bytes);

/** A failure of linnet. `kind`: 'input', 'runtime', 'memory', 'internal' or 'cancelled'. */
export class LinnetError extends Error {
  constructor(kind, message) {
    super(message);
    this.name = 'LinnetError';
    this.kind = kind;
  }
}

// Throws unless all values are whole numbers in 0 .. most: the module would truncate other values.
function checkWhole(values, name, most = 0x7fffffff) {
  for (const value of values) {
    if (!Number.isInteger(value) || value < 0 || value > most) {
      throw new LinnetError('input', `${name}: ${value} is not a whole number in 0 .. ${most}`);
    }
  }
}

/** Loads linnet.wasm, given as bytes, a Response, a promise of either, or a WebAssembly.Module. */
export async function load(source) {
  let given = await source;
  if (typeof Response !== 'undefined' && given instanceof Response) {
    if (!given.ok) throw new LinnetError('input', `${given.url}: the server answers ${given.status}`);
    given = await given.arrayBuffer();
  }
  const module = given instanceof WebAssembly.Module ? given : await WebAssembly.compile(given);
  return Linnet.start(module);
}

export class Linnet {
  #calls = new Map();  // callbacks of the calls in progress, by number
  #count = 0;
  #inCallback = false;
  #owned = new FinalizationRegistry(release => release());  // frees the memory of collected objects

  static async start(module) {
    const linnet = new Linnet();
    const instance = await WebAssembly.instantiate(module, linnet.#imports(module));
    linnet.c = instance.exports;
    linnet.c._initialize();
    return linnet;
  }

  // The system calls of the module's C library. Models come from memory, so only the clock is needed.
  #imports(module) {
    const imports = {
      linnet: {
        progress: (call, done, total) => this.#calls.get(call)(done, total),
        reader: (call, text, bytes) => this.#calls.get(call)(this.bytes(text, bytes)),
      },
      env: {emscripten_notify_memory_growth: () => {}},
      wasi_snapshot_preview1: {
        clock_time_get: (clock, precision, time) => {
          new DataView(this.c.memory.buffer).setBigUint64(time, BigInt(Math.round(performance.now() * 1e6)), true);
          return 0;
        },
        proc_exit: code => {
          throw new LinnetError('internal', `the module ended with code ${code}`);
        },
      },
    };
    for (const {module: from, name} of WebAssembly.Module.imports(module)) {
      imports[from] ??= {};
      imports[from][name] ??= () => from === 'env' ? -ENOSYS : ENOSYS;  // env: Linux's convention
    }
    return imports;
  }

  get version() {
    return this.text(this.c.linnet_version());
  }

  /** Opens a model file: an ArrayBuffer or Uint8Array. */
  open(file, {precision = null, label = 'model'} = {}) {
    return new Model(this, file, precision, label);
  }

  /** Draws a token from logits, with random number `draw` of the seed's stream. */
  choose(logits, draw, options = {}) {
    return this.scope(at => {
      const token = at.room(4);
      this.check(this.c.linnet_choose(at.floats(logits), logits.length, at.sampling(options), BigInt(draw), token));
      return new DataView(this.c.memory.buffer).getInt32(token, true);
    });
  }

  // The methods below are for the other classes of this file. Except in scope(), `at` is an address in the module's
  // memory.

  // A view of `size` bytes of the module's memory, valid until that memory grows.
  bytes(at, size) {
    return new Uint8Array(this.c.memory.buffer, at, size);
  }

  // The string that begins at `at` and ends before a NUL.
  text(at) {
    const memory = new Uint8Array(this.c.memory.buffer);
    return decode(memory.subarray(at, memory.indexOf(0, at)));
  }

  error() {
    return new LinnetError(STATUS[this.c.linnet_last_status()] ?? 'internal', this.text(this.c.linnet_last_error()));
  }

  check(status) {
    if (status !== 0) throw this.error();
  }

  /** Throws if a callback is running. */
  guard() {
    if (this.#inCallback) throw new LinnetError('input', 'a callback must not call linnet');
  }

  // Returns `pointer`, the result of a call of the C API. Throws the call's error if it is NULL.
  handle(pointer) {
    if (pointer === 0) throw this.error();
    return pointer;
  }

  /** Calls body(arena) and frees what the arena allocated. Callers name the arena `at`: at.put(x) is an address. */
  scope(body) {
    this.guard();
    const arena = new Arena(this);
    try {
      return body(arena);
    } finally {
      arena.free();
    }
  }

  /** Calls body(number). Until it returns, the module knows `callback` by this number. An error in `callback` ends the
   *  call of the module and is thrown again here. */
  withCallback(callback, body) {
    const call = ++this.#count;
    let failure = null;
    this.#calls.set(call, (...given) => {
      this.#inCallback = true;
      try {
        return callback(...given) === false ? 1 : 0;
      } catch (error) {
        failure = error;
        return 1;
      } finally {
        this.#inCallback = false;
      }
    });
    try {
      return body(call);
    } finally {
      this.#calls.delete(call);
      if (failure !== null) throw failure;
    }
  }

  // Calls release() when JavaScript has collected `object`, unless disown(object) was called.
  own(object, release) {
    this.#owned.register(object, release, object);
  }

  disown(object) {
    this.#owned.unregister(object);
  }
}

/** Memory of the module for the arguments and results of one call. Methods return addresses. */
class Arena {
  #blocks = [];

  constructor(linnet) {
    this.linnet = linnet;
  }

  room(bytes) {
    const at = this.linnet.c.malloc(Math.max(bytes, 1));
    if (at === 0) throw new LinnetError('memory', `out of memory: ${bytes} bytes`);
    this.#blocks.push(at);
    return at;
  }

  put(array) {
    const at = this.room(array.byteLength);
    this.linnet.bytes(at, array.byteLength).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    return at;
  }

  floats(values) {
    return this.put(values instanceof Float32Array ? values : Float32Array.from(values));
  }

  integers(values, name) {
    checkWhole(values, name);
    return this.put(values instanceof Int32Array ? values : Int32Array.from(values));
  }

  string(text) {
    if (text === null) return 0;
    return this.put(new TextEncoder().encode(`${text}\0`));
  }

  // A struct of options: `init` (a ..._init() of the C API) sets the defaults, and `fields` ([offset, type, value])
  // replace those whose value is not undefined.
  options(size, init, fields) {
    const at = this.room(size);
    this.linnet.check(init(at, size));
    const view = new DataView(this.linnet.c.memory.buffer, at, size);
    for (const [offset, type, value] of fields) {
      if (value === undefined) continue;
      if (type !== 'f32' && typeof value !== 'bigint') checkWhole([value], 'an option', Number.MAX_SAFE_INTEGER);
      if (type === 'u64') view.setBigUint64(offset, BigInt(value), true);
      if (type === 'u32') view.setUint32(offset, Math.min(value, 0x7fffffff), true);
      if (type === 'f32') view.setFloat32(offset, value, true);
    }
    return at;
  }

  sampling({temperature, topP, topK, seed, stream}) {
    return this.options(32, this.linnet.c.linnet_sampling_init,
        [[4, 'f32', temperature], [8, 'f32', topP], [12, 'u32', topK], [16, 'u64', seed], [24, 'u64', stream]]);
  }

  image({seed, firstStream, temperature, batch}, call) {
    return this.options(48, this.linnet.c.linnet_image_options_init, [
      [8, 'u64', seed], [16, 'u64', firstStream], [24, 'f32', temperature], [32, 'u32', batch],
      [36, 'u32', call && this.linnet.c.progress_callback()], [40, 'u32', call],
    ]);
  }

  free() {
    for (const block of this.#blocks) this.linnet.c.free(block);
  }
}

/** A trained model and its engine. Made by Linnet.open(). */
export class Model {
  constructor(linnet, file, precision, label) {
    this.linnet = linnet;
    this.model = Model.#open(linnet, file, precision, label);
    this.engine = linnet.c.linnet_engine_new(this.model, 1);
    const {c} = linnet, {model, engine} = this;  // the closure must not hold `this` or `file`: it would keep them alive
    linnet.own(this, () => {
      c.linnet_engine_free(engine);
      c.linnet_model_free(model);
    });
    linnet.handle(engine);
    const [width, height, channels] = ['width', 'height', 'channels'].map(side => c[`linnet_model_image_${side}`](model));
    this.task = linnet.text(c.linnet_model_task(model));
    this.precision = linnet.text(c.linnet_model_precision(model));
    this.spec = JSON.parse(linnet.text(c.linnet_model_spec(model)));
    this.training = JSON.parse(linnet.text(c.linnet_model_training(model)) || '{}');
    this.parameters = Number(c.linnet_model_parameters(model));
    this.vocabulary = c.linnet_model_vocabulary(model);
    this.outputs = c.linnet_model_outputs(model);
    this.positions = c.linnet_model_positions(model);
    this.limited = c.linnet_model_limited(model) !== 0;
    this.stateKind = STATE_KINDS[c.linnet_model_state_kind(model)];
    this.stateBytes = c.linnet_model_state_bytes(model);
    this.weightBytes = c.linnet_model_weight_bytes(model);
    this.imageShape = width === 0 ? null : [height, width, channels];
    this.imageBytes = c.linnet_model_image_bytes(model);
    this.sampleRate = c.linnet_model_sample_rate(model);
  }

  static #open(linnet, file, precision, label) {
    const bytes = file instanceof Uint8Array ? file : new Uint8Array(file);
    return linnet.scope(at => linnet.handle(
        linnet.c.linnet_model_open_memory(at.put(bytes), bytes.length, at.string(label), at.string(precision))));
  }

  free() {
    this.linnet.guard();
    this.linnet.disown(this);
    this.linnet.c.linnet_engine_free(this.engine);
    this.linnet.c.linnet_model_free(this.model);
    this.engine = this.model = 0;
  }

  newState(batch = 1) {
    this.linnet.guard();
    checkWhole([batch], 'batch');
    return new State(this, this.linnet.handle(this.linnet.c.linnet_state_new(this.engine, batch)));
  }

  /** A state from the bytes of State.save(). */
  loadState(bytes) {
    return new State(this, this.linnet.scope(at => this.linnet.handle(
        this.linnet.c.linnet_state_load_memory(this.engine, at.put(bytes), bytes.length))));
  }

  // Images

  /** Draws `count` images: a Uint8Array [count, imageBytes]. */
  sample(count = 1, options = {}) {
    return this.#draw(count, options, (at, given, pixels) =>
      this.linnet.c.linnet_sample_images(this.engine, count, given, pixels));
  }

  /** Keeps the first `known` bytes of each of the images and draws the others. */
  complete(images, known, options = {}) {
    const count = this.#count(images);
    checkWhole([known], 'known');
    return this.#draw(count, options, (at, given, pixels) =>
      this.linnet.c.linnet_complete_images(this.engine, at.put(images), count, known, given, pixels));
  }

  #count(images) {
    const count = images.length / Math.max(this.imageBytes, 1);
    if (Number.isInteger(count)) return count;
    throw new LinnetError('input', `${images.length} bytes are not a whole number of images of ${this.imageBytes}`);
  }

  #draw(count, options, body) {
    checkWhole([count], 'count');
    const {linnet} = this, size = count * this.imageBytes;
    return linnet.withCallback(options.progress ?? (() => true), call => linnet.scope(at => {
      const pixels = at.room(size);
      linnet.check(body(at, at.image(options, call), pixels));
      return linnet.bytes(pixels, size).slice();
    }));
  }

  /** Draws byte `position` of an image from the outputs after the previous byte (null at position 0). */
  drawByte(outputs, position, {image = 0, ...options} = {}) {
    const {linnet} = this;
    checkWhole([position, image], 'position and image');
    return linnet.scope(at => {
      const byte = at.room(1);
      linnet.check(linnet.c.linnet_draw_byte(
          this.model, this.#outputs(at, outputs, position), image, position, at.image(options), byte));
      return linnet.bytes(byte, 1)[0];
    });
  }

  /** -log2 p of byte `position` of an image, given all bytes before it. */
  byteBits(outputs, byte, position) {
    const {linnet} = this;
    checkWhole([byte], 'byte', 255);
    checkWhole([position], 'position');
    return linnet.scope(at => {
      const nats = at.room(8);
      linnet.check(linnet.c.linnet_byte_nats(
          this.model, this.#outputs(at, outputs, position), byte, position, nats));
      return new DataView(linnet.c.memory.buffer).getFloat64(nats, true) / Math.LN2;
    });
  }

  #outputs(at, outputs, position) {
    if (outputs === null || position === 0) return 0;
    if (outputs.length !== this.outputs) {
      throw new LinnetError('input', `${this.outputs} outputs are needed; got ${outputs.length}`);
    }
    return at.floats(outputs);
  }

  /** Bits per byte of each of the images. */
  bitsPerDim(images) {
    const {linnet} = this, count = this.#count(images);
    return linnet.scope(at => {
      const mean = at.room(8), each = at.room(8 * count);
      linnet.check(linnet.c.linnet_bits_per_dim(this.engine, at.put(images), count, 0, mean, each));
      return new Float64Array(linnet.bytes(each, 8 * count).slice().buffer);
    });
  }

  // Text

  /** The tokens of a text, as an Int32Array. With `prompt`, those that the model reads before a text come first. */
  encode(text, {prompt = false} = {}) {
    const {linnet} = this, encode = prompt ? linnet.c.linnet_encode_prompt : linnet.c.linnet_encode;
    return linnet.scope(at => {
      const bytes = new TextEncoder().encode(text), from = at.put(bytes), count = at.room(4);
      linnet.check(encode(this.model, from, bytes.length, 0, 0, count));
      const size = new DataView(linnet.c.memory.buffer).getUint32(count, true), tokens = at.room(4 * size);
      linnet.check(encode(this.model, from, bytes.length, tokens, size, count));
      return new Int32Array(linnet.bytes(tokens, 4 * size).slice().buffer);
    });
  }

  /** The text of tokens. */
  decode(tokens) {
    const {linnet} = this;
    return linnet.scope(at => {
      const from = at.integers(tokens, 'tokens'), bytes = at.room(4);
      linnet.check(linnet.c.linnet_decode(this.model, from, tokens.length, 0, 0, bytes));
      const size = new DataView(linnet.c.memory.buffer).getUint32(bytes, true), text = at.room(size + 1);
      linnet.check(linnet.c.linnet_decode(this.model, from, tokens.length, text, size + 1, bytes));
      return decode(linnet.bytes(text, size).slice());
    });
  }

  /** The bytes of one token, as they appear after other tokens. They may be only a part of a character. */
  tokenBytes(token) {
    const {linnet} = this;
    checkWhole([token], 'token');
    return linnet.scope(at => {
      const bytes = at.room(4);
      linnet.check(linnet.c.linnet_token_text(this.model, token, 0, 0, bytes));
      const size = new DataView(linnet.c.memory.buffer).getUint32(bytes, true), text = at.room(size + 1);
      linnet.check(linnet.c.linnet_token_text(this.model, token, text, size + 1, bytes));
      return linnet.bytes(text, size).slice();
    });
  }

  /** The token that ends a text. */
  get end() {
    return this.linnet.c.linnet_model_end(this.model);
  }

  /** Continues a prompt. Calls options.reader(piece), which ends the text by returning false. Returns the new text. */
  generate(prompt = '', {maxTokens, stop = [], reader = () => true, ...sampling} = {}) {
    const {linnet} = this;
    let text = '';
    const receive = bytes => {
      const piece = decode(bytes.slice());
      text += piece;
      return reader(piece);
    };
    linnet.withCallback(receive, call => linnet.scope(at => {
      const bytes = new TextEncoder().encode(prompt);
      const stops = [stop].flat().map(one => at.string(one));
      const options = at.options(24, linnet.c.linnet_text_options_init, [
        [4, 'u32', maxTokens], [8, 'u32', at.sampling(sampling)], [12, 'u32', at.put(Uint32Array.from(stops))],
        [16, 'u32', stops.length],
      ]);
      linnet.check(linnet.c.linnet_write_text(
          this.engine, at.put(bytes), bytes.length, options, linnet.c.reader_callback(), call, 0));
    }));
    return text;
  }

  // Speech: samples are floats in -1 .. 1, one channel, at sampleRate

  /** The phones of a recording. beam: 1 for the most likely path, more for a prefix beam search of that width. */
  transcribe(samples, {beam = 1} = {}) {
    const {linnet} = this, {c} = linnet;
    checkWhole([beam], 'beam');
    return linnet.scope(at => {
      const transcript = linnet.handle(c.linnet_transcribe(this.engine, at.floats(samples), samples.length, beam));
      try {
        return phonesOf(linnet, transcript);
      } finally {
        c.linnet_transcript_free(transcript);
      }
    });
  }

  /** A transcriber for audio that arrives in pieces. Needs a causal model. */
  transcriber() {
    this.linnet.guard();
    return new Transcriber(this, this.linnet.handle(this.linnet.c.linnet_transcriber_new(this.engine)));
  }

  /** What the model hears: log energies [frames, spec.bands] of the mel filterbank, a frame every 10 ms. */
  frames(samples) {
    const {linnet} = this;
    return linnet.scope(at => {
      const from = at.floats(samples), written = at.room(4);
      const compute = (to, room) => linnet.check(
          linnet.c.linnet_speech_frames(this.model, from, samples.length, to, room, written));
      compute(0, 0);
      const count = new DataView(linnet.c.memory.buffer).getUint32(written, true), to = at.room(4 * count);
      compute(to, count);
      return new Float32Array(linnet.bytes(to, 4 * count).slice().buffer);
    });
  }

  #scores(at, lines, i) {
    const {linnet} = this, count = at.room(4);
    const from = linnet.c.linnet_couplets_scores(lines, i, count);
    const size = new DataView(linnet.c.memory.buffer).getUint32(count, true);
    return new Float64Array(linnet.bytes(from, 8 * size).slice().buffer);
  }

  /** Second lines for the first line of a couplet, the most likely first: [{text, logProbability, scores}], with log p of
   *  each character in `scores`. The array's property `unknown` lists the first line's characters that the model does
   *  not know. */
  couplets(first, {candidates = 5, beam, freeForm, ...sampling} = {}) {
    const {linnet} = this, {c} = linnet;
    return linnet.scope(at => {
      const bytes = new TextEncoder().encode(first);
      const options = at.options(20, c.linnet_couplet_options_init, [
        [4, 'u32', candidates], [8, 'u32', beam], [12, 'u32', at.sampling(sampling)],
        [16, 'u32', freeForm === undefined ? undefined : Number(freeForm)],
      ]);
      const lines = linnet.handle(c.linnet_write_couplets(this.engine, at.put(bytes), bytes.length, options));
      try {
        const answers = Array.from({length: c.linnet_couplets_count(lines)}, (_, i) => ({
          text: linnet.text(c.linnet_couplets_text(lines, i)),
          logProbability: c.linnet_couplets_log_probability(lines, i),
          scores: this.#scores(at, lines, i),
        }));
        const unknown = linnet.text(c.linnet_couplets_unknown(lines));
        return Object.assign(answers, {unknown: unknown === '' ? [] : unknown.split(' ')});
      } finally {
        c.linnet_couplets_free(lines);
      }
    });
  }
}

// The phones of a transcript of the C API, from index `first` on.
function phonesOf(linnet, transcript, first = 0) {
  const {c} = linnet, phones = [];
  for (let i = first; i < c.linnet_transcript_count(transcript); ++i) {
    phones.push({
      name: linnet.text(c.linnet_transcript_phone(transcript, i)), seconds: c.linnet_transcript_start(transcript, i),
      probability: c.linnet_transcript_probability(transcript, i),
    });
  }
  return phones;
}

/** Recognizes phones in audio as it arrives. Made by Model.transcriber(). */
export class Transcriber {
  #returned = 0;  // number of phones that feed() and finish() have returned

  constructor(model, transcriber) {
    const {linnet} = model;
    this.linnet = linnet;
    this.transcriber = transcriber;
    linnet.own(this, () => linnet.c.linnet_transcriber_free(transcriber));
  }

  /** Delay from the beginning of a phone to its recognition, in seconds of audio. */
  get delay() {
    return this.linnet.c.linnet_transcriber_delay(this.transcriber);
  }

  /** Reads the next samples, any number of them. Returns the new phones. */
  feed(samples) {
    this.linnet.scope(at =>
      this.linnet.check(this.linnet.c.linnet_transcriber_accept(this.transcriber, at.floats(samples), samples.length)));
    return this.#new();
  }

  /** Ends the audio. Returns the remaining phones. */
  finish() {
    this.linnet.guard();
    this.linnet.check(this.linnet.c.linnet_transcriber_finish(this.transcriber));
    return this.#new();
  }

  #new() {
    const phones = phonesOf(this.linnet, this.linnet.c.linnet_transcriber_transcript(this.transcriber), this.#returned);
    this.#returned += phones.length;
    return phones;
  }

  free() {
    this.linnet.guard();
    this.linnet.disown(this);
    this.linnet.c.linnet_transcriber_free(this.transcriber);
    this.transcriber = 0;
  }
}

/** The state of `batch` sequences: a value that can be copied, forked and saved. Made by Model.newState(). */
export class State {
  constructor(model, state) {
    const {linnet} = model;
    this.model = model;
    this.state = state;
    linnet.own(this, () => linnet.c.linnet_state_free(state));
  }

  get #c() {
    return this.model.linnet.c;
  }

  free() {
    this.model.linnet.guard();
    this.model.linnet.disown(this);
    this.#c.linnet_state_free(this.state);
    this.state = 0;
  }

  get batch() {
    return this.#c.linnet_state_batch(this.state);
  }

  /** Number of tokens that a sequence has read. */
  position(sequence = 0) {
    checkWhole([sequence], 'sequence');
    const position = this.#c.linnet_state_position(this.state, sequence);
    this.model.linnet.check(this.#c.linnet_last_status());
    return position;
  }

  /** Memory of all sequences together, in bytes. */
  get bytes() {
    return this.#c.linnet_state_bytes(this.state);
  }

  /** Reads one token per sequence. Returns the outputs for the next tokens: [batch, outputs]. */
  step(tokens) {
    this.#expect(tokens, this.batch);
    return this.#read(this.batch * this.model.outputs, (at, outputs) =>
      this.#c.linnet_step(this.model.engine, this.state, at.integers(tokens, 'tokens'), outputs));
  }

  /** Reads tokens [batch, length] in one pass. Returns the outputs of the last position, [batch, outputs], or with
   *  `every` those of all positions, [batch, length, outputs]. */
  read(tokens, {every = false} = {}) {
    const {batch} = this, length = tokens.length / batch;
    this.#expect(tokens, batch * Math.trunc(length));
    return this.#read(batch * (every ? length : 1) * this.model.outputs, (at, outputs) =>
      (every ? this.#c.linnet_prefix_all : this.#c.linnet_prefix)(
          this.model.engine, this.state, at.integers(tokens, 'tokens'), length, outputs));
  }

  #expect(tokens, count) {
    if (this.state === 0) throw new LinnetError('input', 'the state was freed');
    if (tokens.length !== count) {
      throw new LinnetError('input', `${tokens.length} tokens for ${this.batch} sequences`);
    }
  }

  #read(size, call) {
    const {linnet} = this.model;
    return linnet.scope(at => {
      const outputs = at.room(4 * size);
      linnet.check(call(at, outputs));
      return new Float32Array(linnet.bytes(outputs, 4 * size).slice().buffer);
    });
  }

  #made(state) {
    return new State(this.model, this.model.linnet.handle(state));
  }

  copy() {
    this.model.linnet.guard();
    return this.#made(this.#c.linnet_state_clone(this.state));
  }

  /** A new state with `copies` copies of each sequence; for 2: 0 0 1 1 ... */
  fork(copies) {
    this.model.linnet.guard();
    checkWhole([copies], 'copies');
    return this.#made(this.#c.linnet_state_fork(this.state, copies));
  }

  /** A new state with copies of these sequences, in this order. */
  select(sequences) {
    return this.model.linnet.scope(at =>
      this.#made(this.#c.linnet_state_select(this.state, at.integers(sequences, 'sequences'), sequences.length)));
  }

  append(other) {
    this.model.linnet.guard();
    this.model.linnet.check(this.#c.linnet_state_append(this.state, other.state));
  }

  reset() {
    this.model.linnet.guard();
    this.model.linnet.check(this.#c.linnet_state_reset(this.state));
  }

  /** The bytes of a state file, which linnet reads on every machine. */
  save() {
    const {linnet} = this.model;
    return linnet.scope(at => {
      const size = at.room(4);
      const save = (to, room) => linnet.check(
          this.#c.linnet_state_save_memory(this.state, this.model.engine, to, room, size));
      save(0, 0);
      const bytes = new DataView(linnet.c.memory.buffer).getUint32(size, true), to = at.room(bytes);
      save(to, bytes);
      return linnet.bytes(to, bytes).slice();
    });
  }
}
