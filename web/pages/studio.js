// Code shared by the pages of the studio, whose models run in this browser: calls of worker.js, and common parts of the
// pages. If 'linnet serve --site' shows the pages, some of them also use its models. Pages load this after shell.js.
'use strict';

const studio = {
  worker: null,
  waiting: new Map(),  // the running tasks by id: {handle, resolve, reject}
  count: 0,  // the id of the last task

  // The models that web/build writes: `file` is the name without .safetensors, `precision` the one to run it in.
  models: {
    digits: {file: 'digits', precision: 'int8'},
    gated: {file: 'digits-gated-delta', precision: 'int8'},
    softmax: {file: 'digits-softmax', precision: 'int8'},
    couplet: {file: 'couplet', precision: 'int8'},
    text: {file: 'shakespeare', precision: 'int8'},
    phones: {file: 'phones-causal', precision: 'int8'},
  },

  // Whether the browser has the features that the engine needs: module workers, and SIMD and exceptions of WebAssembly.
  supported() {
    return this.works ??= this.probe();
  },
  works: null,
  probe() {
    // A WebAssembly module whose function uses a vector inside try and catch_all.
    const module = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 13, 1, 11,
      0, 6, 64, 65, 0, 253, 15, 26, 25, 11, 11);
    let modules = false;
    try {
      new Worker('worker.js', {get type() { modules = true; return 'module'; }}).terminate();
    } catch {}
    return modules && typeof WebAssembly !== 'undefined' && WebAssembly.validate(module);
  },

  // Runs a task of worker.js. handle(event, data) receives the task's events. Resolves to the task's result; rejects at
  // once when `signal` aborts.
  // `transfer` lists the objects in `given` that the worker takes over.
  run(task, given, {handle = () => {}, signal, transfer = []} = {}) {
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.worker === null) {
      this.worker = new Worker('worker.js', {type: 'module'});
      this.worker.onmessage = ({data}) => this.receive(data);
      this.worker.onerror = event => {  // the next call of run() starts another worker
        this.worker.terminate();
        this.worker = null;
        for (const {reject} of this.waiting.values()) reject(new Error(event.message || shell.text('broken')));
        this.waiting.clear();
      };
    }
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, {handle, resolve, reject});
      signal?.addEventListener('abort', () => {
        this.waiting.delete(id);
        this.worker?.postMessage({stop: id});
        reject(signal.reason);
      });
      this.worker.postMessage({id, task, ...given}, transfer);
    });
  },

  receive({id, event, done, error, ...data}) {
    const {handle, resolve, reject} = this.waiting.get(id) ?? {};
    if (handle === undefined) return;
    if (event === 'loading') return this.loading(data);
    this.loaded();
    if (event !== undefined) return handle(event, data);
    this.waiting.delete(id);
    if (error !== undefined) reject(new Error(error));
    else resolve(done);
  },

  // The names of the server's models for a task. None if the server wants a key, or if a server of files shows this
  // page: the file v1/models, which web/build writes, is an empty list.
  offered: null,
  async served(task) {
    this.offered ??= fetch('v1/models').then(response => response.json()).then(({data = []}) => data).catch(() => []);
    return (await this.offered).filter(model => model.task === task).map(({id}) => id);
  },

  // Tells in the footer who computes: the server, or this browser.
  computes(server) {
    document.querySelector('footer p').dataset.text = server ? 'there' : 'where';
    shell.fill();
  },

  // Begins a page with its texts, `words`. Tells the visitor if the browser is too old. The stop button and Escape stop
  // the work of the page.
  begin(words) {
    shell.begin(words);
    document.getElementById('stop').addEventListener('click', () => this.working?.abort());
    document.addEventListener('keydown', event => event.key === 'Escape' && this.working?.abort());
    if (!this.supported()) shell.say(['old']);
  },

  // Stops earlier work of the page, then runs body(signal). body resolves to the message to show at the end, [key,
  // values]. `doing` is the message meanwhile.
  working: null,  // the AbortController of the work in progress
  doing: ['working'],
  async work(body, doing = ['working']) {
    if (!this.supported()) return;
    this.working?.abort();
    const mine = this.working = new AbortController();
    document.getElementById('stop').hidden = false;
    this.does(doing);
    try {
      const end = await body(mine.signal);
      if (mine === this.working) shell.say(end);
    } catch (error) {
      mine.abort();
      if (mine !== this.working) return;
      shell.say(error.name === 'AbortError' ? ['stopped'] : ['failed', {message: () => shell.explain(error)}]);
    } finally {
      if (mine === this.working) this.quit();
    }
  },

  // Stops the work without a message.
  quit() {
    this.working?.abort();
    this.working = null;
    document.getElementById('stop').hidden = true;
  },

  // Changes the message of the work in progress.
  does(doing) {
    this.doing = doing;
    shell.say(doing);
  },

  // After a download: shows the work's own message again.
  loaded() {
    if (shell.said[0]?.[0] === 'loading') shell.say(this.doing);
  },

  loading({loaded, total}) {
    if (loaded === total) return this.loaded();
    const percent = Math.min(100, 10 * Math.floor(10 * loaded / total));  // screen readers read each step out
    const words = ['loading', {progress: total > 0 ? `${percent} %` : this.bytes(loaded)}];
    if (JSON.stringify(words) !== JSON.stringify(shell.said[0])) shell.say(words);
  },

  bytes(count) {
    return count < 1e6 ? `${Math.round(count / 1e3)} kB` : `${(count / 1e6).toFixed(2)} MB`;
  },

  // Draws gray pixels [height, width] on a canvas of this size: dark on light in both themes. Pixels before `from` are
  // transparent. heat: -log2 p of each pixel in bits, shown in red; null: no red.
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

for (const words of Object.values(shell.words)) words.there = words.where;
Object.assign(shell.words.zh, {
  digits: '数字', race: '赛跑', write: '写作', speech: '语音', hood: '内部', loading: '正在下载模型 {progress}',
  where: '一切都在你的浏览器里计算，不向任何地方发送内容。', old: '这个浏览器太旧：需要模块 worker，以及 WebAssembly 的 SIMD 和异常处理。',
  broken: '引擎没有启动。', failed: '出错了：{message}',
});
Object.assign(shell.words.en, {
  digits: 'Digits', race: 'Race', write: 'Text', speech: 'Speech', hood: 'Under the hood', loading: 'Downloading the model {progress}',
  where: 'Everything is computed in your browser; nothing is sent anywhere.',
  old: 'This browser is too old: it needs module workers, and SIMD and exceptions of WebAssembly.',
  broken: 'The engine did not start.', failed: 'That failed: {message}',
});
shell.pages = [['index.html', 'digits'], ['race.html', 'race'], ['couplet.html', 'couplets'], ['text.html', 'write'],
  ['speech.html', 'speech'], ['hood.html', 'hood']];

// The server's model answers couplets, if it has one; otherwise this browser's engine writes the lines.
shell.couplets = async (request, handle, signal) => {
  const server = (await studio.served('couplet')).length > 0;
  studio.computes(server);
  if (server) return shell.stream('v1/couplets', request, handle, signal);
  if (!studio.supported()) throw new Error(shell.text('old'));
  const {first, candidates} = request;
  const result = await studio.run('couplets', {...studio.models.couplet, first, candidates}, {signal});
  for (const [candidate, {text}] of result.candidates.entries()) {
    for (const character of text) await handle('character', {candidate, text: character});
  }
  await handle('done', {unknown: result.unknown, candidates: result.candidates});
};

// The footer of the couplets' page tells from the start who computes.
if (document.getElementById('ask')) studio.served('couplet').then(names => studio.computes(names.length > 0));

// Pages and models that were loaded once work offline, except in a private window or over plain http.
navigator.serviceWorker?.register('offline.js').catch(() => {});
