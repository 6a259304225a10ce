// Shared by the pages of the studio, whose models run in this browser: tasks of worker.js, and parts of pages.
// After shell.js.
'use strict';

const studio = {
  worker: null,
  waiting: new Map(),
  count: 0,

  // The models, as web/build writes them: file and precision.
  models: {
    digits: {file: 'digits', precision: 'int8'},
    gated: {file: 'digits-gated-delta', precision: 'int8'},
    softmax: {file: 'digits-softmax', precision: 'int8'},
    couplet: {file: 'couplet', precision: 'int8'},
    text: {file: 'shakespeare', precision: 'int8'},
  },

  supported() {
    // A module whose function has a vector of SIMD inside try and catch_all: what the engine needs.
    const probe = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 13, 1, 11,
      0, 6, 64, 65, 0, 253, 15, 26, 25, 11, 11);
    return typeof Worker !== 'undefined' && typeof WebAssembly !== 'undefined' && WebAssembly.validate(probe);
  },

  // Runs a task of the worker. handle(event, data) receives its events; `signal` stops it. Resolves to its result.
  run(task, given, {handle = () => {}, signal} = {}) {
    if (this.worker === null) {
      this.worker = new Worker('worker.js', {type: 'module'});
      this.worker.onmessage = ({data}) => this.receive(data);
      this.worker.onerror = event => {
        for (const {reject} of this.waiting.values()) reject(new Error(event.message ?? shell.text('broken')));
        this.waiting.clear();
      };
    }
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, {handle, resolve, reject});
      signal?.addEventListener('abort', () => this.worker.postMessage({stop: id}));
      this.worker.postMessage({id, task, ...given});
      if (signal?.aborted) this.worker.postMessage({stop: id});
    });
  },

  receive({id, event, done, error, ...data}) {
    const {handle, resolve, reject} = this.waiting.get(id) ?? {};
    if (handle === undefined) return;
    if (event !== undefined) return handle(event, data);
    this.waiting.delete(id);
    if (error !== undefined) reject(new Error(error));
    else resolve(done);
  },

  // Begins a page with its words; says so and returns false where the browser is too old.
  begin(words) {
    shell.begin(words);
    if (!this.supported()) this.say('old');
    return this.supported();
  },

  fill(key, values = {}) {
    return shell.text(key).replace(/\{(\w+)\}/g, (_, name) => values[name]);
  },

  // What the status line says, in both languages: it is filled again when the language changes.
  said: [],
  say(key, values) {
    this.said = key === undefined ? [] : [key, values];
    document.getElementById('say').textContent = key === undefined ? '' : this.fill(key, values);
  },

  loading({loaded, total}) {
    this.say('loading', {percent: total > 0 ? `${Math.round(100 * loaded / total)} %` : this.bytes(loaded)});
  },

  failed(error) {
    this.say('failed', {message: error.message});
  },

  bytes(count) {
    return count < 1e6 ? `${Math.round(count / 1e3)} kB` : `${(count / 1e6).toFixed(2)} MB`;
  },

  // Draws gray pixels [height, width] on a canvas of this size: dark on light in both themes. heat: bits of each pixel,
  // shown in red.
  paint(canvas, pixels, {from = 0, heat = null} = {}) {
    const context = canvas.getContext('2d');
    const image = context.createImageData(canvas.width, canvas.height);
    pixels.forEach((value, p) => {
      const shade = 255 - value, red = heat === null ? 0 : Math.min(1, heat[p] / 8);
      image.data.set([
        shade + (200 - shade) * red, shade * (1 - red) + 30 * red, shade * (1 - red) + 30 * red, p < from ? 0 : 255,
      ], 4 * p);
    });
    context.putImageData(image, 0, 0);
  },

  seed() {
    return Math.floor(Math.random() * 1e9);
  },
};

Object.assign(shell.words.zh, {
  digits: '数字', race: '赛跑', write: '写作', loading: '正在下载模型 {percent}',
  where: '一切都在你的浏览器里计算，不向任何地方发送内容。', old: '这个浏览器太旧：需要 WebAssembly 的 SIMD 和异常处理。',
  broken: '引擎没有启动。', failed: '出错了：{message}',
});
Object.assign(shell.words.en, {
  digits: 'Digits', race: 'Race', write: 'Text', loading: 'Downloading the model {percent}',
  where: 'Everything is computed in your browser; nothing is sent anywhere.',
  old: 'This browser is too old: it needs SIMD and exceptions of WebAssembly.',
  broken: 'The engine did not start.', failed: 'That failed: {message}',
});
shell.pages = [['index.html', 'digits'], ['race.html', 'race'], ['couplet.html', 'couplets'], ['text.html', 'write']];

// In place of the server's stream of a couplet's characters: the lines of this browser's engine.
shell.stream = async (path, {first, candidates}, handle, signal) => {
  const result = await studio.run('couplets', {...studio.models.couplet, first, candidates}, {signal});
  for (const [candidate, {text}] of result.candidates.entries()) {
    for (const character of text) await handle('character', {candidate, text: character});
  }
  await handle('done', {unknown: result.unknown, candidates: result.candidates});
};

// Pages and models that were loaded once work offline. Not in a private window, and not over plain http.
navigator.serviceWorker?.register('offline.js').catch(() => {});

document.addEventListener('language', () => {
  if (studio.said.length > 0) studio.say(...studio.said);
});
