// Shared by all pages: the two languages, the theme, and server-sent events over POST.
'use strict';

const shell = {
  words: {
    zh: {
      theme: '明暗', language: 'English', pages: '页面', couplets: '对联',
      where: '一切都由提供本页的服务器计算，不向别处发送任何内容。', key: '此服务器需要 API 密钥：', 400: '服务器无法处理这一输入（可能太长，或含有控制字符）。',
      401: 'API 密钥不对。', 413: '输入太长。', 429: '服务器正忙，请稍后再试。', 503: '服务器正忙或正在关闭，请稍后再试。',
    },
    en: {
      theme: 'Light or dark', language: '中文', pages: 'Pages', couplets: 'Couplets',
      where: 'Everything is computed by the server of this page; nothing is sent elsewhere.',
      key: 'This server requires an API key:',
    },
  },
  pages: [['couplet.html', 'couplets']],  // address and word of each page; the first is also './'
  apiKey: null,
  language: 'zh',

  text(key) { return this.words[this.language][key] ?? key; },

  // The text of `key` with its {names} replaced by values, which may be functions of the language.
  filled(key, values = {}) {
    return this.text(key).replace(/\{(\w+)\}/g, (_, name) => {
      const value = values[name];
      return typeof value === 'function' ? value() : value;
    });
  },

  // Shows a message in the element #say, and again when the language changes. Each part is [key, values].
  said: [],
  say(...parts) {
    this.said = parts;
    document.getElementById('say').textContent = parts.map(([key, values]) => this.filled(key, values)).join(' ');
  },

  // The text of an error: the page's own text for this status, else the server's message, in English.
  explain(error) {
    return this.words[this.language][error.status] ?? error.message;
  },

  // Adds a page's words and its header, and fills every element that has data-text or data-label.
  begin(words) {
    for (const language of ['zh', 'en']) Object.assign(this.words[language], words[language]);
    const kept = this.recall('language');
    this.language = kept || (navigator.language.startsWith('zh') ? 'zh' : 'en');
    document.querySelector('header').innerHTML = `<a class="name" href="./">linnet</a><nav data-label="pages"></nav>
      <button id="language" type="button" data-text="language"></button>
      <button id="theme" type="button" data-label="theme"><span aria-hidden="true">◐</span></button>`;
    const file = location.pathname.split('/').pop() || this.pages[0][0];
    document.querySelector('nav').replaceChildren(...this.pages.map(([address, word], i) => {
      const link = document.createElement('a');
      link.href = i === 0 ? './' : address;
      link.dataset.text = word;
      if (file === address || `${file}.html` === address) link.setAttribute('aria-current', 'page');
      return link;
    }));
    const theme = this.recall('theme');
    if (theme) document.documentElement.dataset.theme = theme;
    document.getElementById('language').addEventListener('click', () => {
      this.language = this.language === 'zh' ? 'en' : 'zh';
      this.keep('language', this.language);
      this.fill();
    });
    document.getElementById('theme').addEventListener('click', () => {
      const dark = document.documentElement.dataset.theme
        ? document.documentElement.dataset.theme === 'dark'
        : matchMedia('(prefers-color-scheme: dark)').matches;
      document.documentElement.dataset.theme = dark ? 'light' : 'dark';
      this.keep('theme', document.documentElement.dataset.theme);
    });
    this.fill();
  },

  fill() {
    document.documentElement.lang = this.language === 'zh' ? 'zh-CN' : 'en';
    for (const element of document.querySelectorAll('[data-text]')) {
      element.textContent = this.text(element.dataset.text);
    }
    for (const element of document.querySelectorAll('[data-label]')) {
      element.setAttribute('aria-label', this.text(element.dataset.label));
      if (element.tagName === 'BUTTON') element.title = this.text(element.dataset.label);
    }
    document.title = this.text('title');
    delete document.documentElement.dataset.empty;
    this.say(...this.said);
    document.dispatchEvent(new Event('language'));
  },

  // localStorage may be blocked, as in a private window: settings then last for one page view.
  keep(key, value) { try { localStorage.setItem('linnet.' + key, value); } catch {} },
  recall(key) { try { return localStorage.getItem('linnet.' + key); } catch { return null; } },

  // Posts JSON and awaits handle(event, data) for each event of the response, until the stream ends or
  // `signal` aborts. If the server refuses the request, throws an Error with its message and status.
  async stream(path, body, handle, signal) {
    const ask = () => fetch(path, {
      method: 'POST', body: JSON.stringify(body), signal,
      headers: {
        'Content-Type': 'application/json', ...(this.apiKey && { Authorization: `Bearer ${this.apiKey}` }),
      },
    });
    let response = await ask();
    if (response.status === 401 && (this.apiKey = prompt(this.text('key')))) response = await ask();
    if (!response.ok) {
      const refusal = await response.json().catch(() => null);
      const message = refusal?.error?.message ?? `${response.status} ${response.statusText}`;
      throw Object.assign(new Error(message), { status: response.status });
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = '';;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
        let event = 'message', data = '';
        for (const line of text.slice(0, end).split('\n')) {
          if (line.startsWith('event: ')) event = line.slice(7);
          if (line.startsWith('data: ')) data += line.slice(6);
        }
        if (data === '[DONE]') return;  // the end of a stream of OpenAI's interface
        if (data) await handle(event, JSON.parse(data));
      }
    }
  },

  // Answers the first line of a couplet: a stream of events, as the server's.
  couplets(request, handle, signal) {
    return this.stream('v1/couplets', request, handle, signal);
  },
};
