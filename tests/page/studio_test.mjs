// Tests the studio, the site of web/build, in a browser: the work of every page; languages, themes
// and widths; accessibility with axe-core; and the same pages shown by linnet serve.
//
//   node tests/page/studio_test.mjs SITE BIN_DIR
import { createReadStream, existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { assert, chromium, load, run, serve } from './common.mjs';

const executablePath = chromium();
const { module: { chromium: browserType } } = load('playwright-core');
const axe = readFileSync(load('axe-core').resolve('axe-core'), 'utf8');
const site = process.argv[2];
const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.wasm': 'application/wasm' };
const server = http.createServer((request, response) => {
  const name = new URL(request.url, 'http://x').pathname;
  const file = path.join(site, name.endsWith('/') ? `${name}index.html` : name);
  if (!existsSync(file)) return response.writeHead(404).end();
  response.writeHead(200, {
    'Content-Type': types[path.extname(file)] ?? 'application/octet-stream', 'Content-Length': statSync(file).size,
  });
  return createReadStream(file).pipe(response);
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const url = `http://127.0.0.1:${server.address().port}`;
// The fake microphone of Chromium beeps once a second.
const browser = await browserType.launch({
  executablePath, args: ['--no-sandbox', '--use-fake-device-for-media-stream', '--autoplay-policy=no-user-gesture-required'],
});
const PAGES = ['index.html', 'race.html', 'couplet.html', 'text.html', 'speech.html', 'hood.html'];

async function open(name, { before, from = url, ...options } = {}) {
  const context = await browser.newContext({ locale: 'en-GB', bypassCSP: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(90000);
  page.faults = [];
  page.on('pageerror', (error) => page.faults.push(error.message));
  page.on('console', (message) => message.type() === 'error' && page.faults.push(message.text()));
  page.on('request', (request) => /^(data|blob):/.test(request.url()) || request.url().startsWith(from) ||
    page.faults.push(`asks ${request.url()}`));
  if (before) await before(page);
  await page.goto(`${from}/${name}`);
  return page;
}

const says = (page, pattern) => page.waitForFunction(
  ([source, flags]) => new RegExp(source, flags).test(document.getElementById('say').textContent),
  [pattern.source, pattern.flags]);
const rowsOf = (page, selector, from, to) => page.$eval(selector, (canvas, [first, last]) =>
  [...canvas.getContext('2d').getImageData(0, first, 28, last - first).data].filter((_, i) => i % 4 === 0), [from, to]);
const dark = (pixels) => pixels.filter((value) => value < 128).length;

// A WAV file with `seconds` of buzzes at changing pitches: 16 kHz, 16 bits, one channel.
function wav(seconds) {
  const rate = 16000, count = seconds * rate, file = Buffer.alloc(44 + 2 * count);
  file.write('RIFF');
  file.writeUInt32LE(36 + 2 * count, 4);
  file.write('WAVEfmt ', 8);
  [[16, 4], [1, 2], [1, 2], [rate, 4], [2 * rate, 4], [2, 2], [16, 2]].reduce(
    (at, [value, size]) => file.writeUIntLE(value, at, size), 16);
  file.write('data', 36);
  file.writeUInt32LE(2 * count, 40);
  for (let i = 0; i < count; ++i) {
    const t = i / rate, pitch = 110 + 30 * Math.sin(3 * t);
    let sum = 0;
    for (let k = 1; k < 30; ++k) sum += 0.05 * (k * pitch < 1200 ? 1 : 0.2) * Math.sin(2 * Math.PI * k * pitch * t);
    file.writeInt16LE(Math.round(32767 * Math.max(-1, Math.min(1, sum * Math.abs(Math.sin(8 * t))))), 44 + 2 * i);
  }
  return file;
}
// The share of the picture of the sound that is not white.
const inked = (page) => page.$eval('#bands', (canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, i) => i % 4 === 0 && value < 250).length / (data.length / 4);
});

// Draws the upper half of a 2 on the sheet.
async function draw(page) {
  const box = await page.locator('#paper').boundingBox();
  const at = (x, y) => [box.x + box.width * x / 28, box.y + box.height * y / 28];
  await page.mouse.move(...at(8, 7));
  await page.mouse.down();
  for (const [x, y] of [[11, 5.5], [15, 5], [18, 7], [19, 9], [18, 12]]) await page.mouse.move(...at(x, y), { steps: 4 });
  await page.mouse.up();
}

await run({
  'a digit is drawn when the page opens': async () => {
    const page = await open('');
    await says(page, /µs a pixel/);
    assert.ok(dark(await rowsOf(page, '#paper', 0, 28)) > 20);
    assert.deepEqual(page.faults, []);
  },
  'half a digit is continued below the line, and only there': async () => {
    const page = await open('');
    await says(page, /µs a pixel/);
    await page.click('#clear');
    await draw(page);
    await says(page, /µs a pixel/);
    const half = await rowsOf(page, '#paper', 0, 14);
    assert.ok(dark(half) > 20);
    assert.equal(await page.locator('#answers canvas').count(), 6);
    const lower = [];
    for (let i = 1; i <= 6; ++i) {
      assert.deepEqual(await rowsOf(page, `#answers li:nth-child(${i}) canvas`, 0, 14), half);
      lower.push(await rowsOf(page, `#answers li:nth-child(${i}) canvas`, 14, 28));
    }
    assert.ok(lower.filter((pixels) => dark(pixels) > 10).length >= 5, String(lower.map(dark)));
    assert.ok(new Set(lower.map(String)).size >= 5);
    // Surprise colors pixels.
    const before = await page.$eval('#answers canvas', (canvas) => canvas.toDataURL());
    await page.check('#heat');
    assert.notEqual(await page.$eval('#answers canvas', (canvas) => canvas.toDataURL()), before);
    assert.deepEqual(page.faults, []);
  },
  'a test image is continued, and then the next one': async () => {
    const page = await open('');
    const sheets = [];
    for (let i = 0; i < 2; ++i) {
      await page.click('#test');
      await says(page, /µs a pixel/);
      sheets.push(await rowsOf(page, '#paper', 0, 28));
      assert.equal(await page.locator('#answers canvas').count(), 6);
      assert.deepEqual(await rowsOf(page, '#answers li:nth-child(6) canvas', 0, 14), sheets[i].slice(0, 14 * 28));
    }
    // MNIST's first test images of a 0 and of a 1.
    assert.deepEqual(sheets.map((sheet) => sheet.reduce((sum, value) => sum + 255 - value, 0)), [37014, 9871]);
    assert.deepEqual(page.faults, []);
  },
  'a visitor who draws at once is not disturbed by the page\'s own drawing': async () => {
    const page = await open('');
    await page.waitForFunction(() => document.getElementById('stop').hidden === false);
    await draw(page);
    await says(page, /µs a pixel/);
    assert.equal(await page.locator('#answers canvas').count(), 6);
    assert.deepEqual(page.faults, []);
  },
  'the dashed line is at the cut': async () => {
    const page = await open('');
    for (const row of [4, 14, 27]) {
      await page.$eval('#cut', (input, value) => {
        input.value = value;
        input.dispatchEvent(new Event('input'));
      }, row);
      const [sheet, line] = await Promise.all(['#paper', '#cut-line'].map((id) => page.locator(id).boundingBox()));
      assert.ok(Math.abs((line.y - sheet.y) / sheet.height - row / 28) < 0.02, String(row));
    }
  },
  'the sheet is drawn on by keyboard, erased and cleared': async () => {
    const page = await open('');
    await says(page, /µs a pixel/);
    await page.click('#clear');
    assert.equal(dark(await rowsOf(page, '#paper', 0, 28)), 0);
    await page.click('#go');
    await says(page, /Draw something/);
    await page.focus('#paper');
    for (let i = 0; i < 5; ++i) await page.keyboard.press('Shift+ArrowDown');
    const drawn = dark(await rowsOf(page, '#paper', 0, 14));
    assert.ok(drawn >= 5, String(drawn));
    await page.click('#erase');
    await page.focus('#paper');
    for (let i = 0; i < 6; ++i) await page.keyboard.press('Shift+ArrowUp');
    const left = dark(await rowsOf(page, '#paper', 0, 14));
    assert.ok(left < drawn / 2, `${left} of ${drawn}`);
    assert.deepEqual(page.faults, []);
  },
  'Escape and the button stop the work': async () => {
    const page = await open('race.html');
    for (const stop of [() => page.keyboard.press('Escape'), () => page.click('#stop')]) {
      await page.click('#go');
      await page.waitForFunction(() => /^[1-9]/.test(document.getElementById('pixel-gated').textContent));
      await stop();
      await says(page, /Stopped/);
      assert.equal(await page.isVisible('#stop'), false);
    }
    assert.deepEqual(page.faults, []);
  },
  'both racers finish': async () => {
    const page = await open('race.html');
    await page.click('#go');
    await says(page, /times the memory/);
    for (const lane of ['gated', 'softmax']) {
      assert.equal(await page.textContent(`#pixel-${lane}`), '784 of 784');
      assert.ok(dark(await rowsOf(page, `#sheet-${lane}`, 0, 28)) > 10);
    }
    assert.match(await page.textContent('#memory-gated'), /^84 kB/);
    assert.match(await page.textContent('#memory-softmax'), /^3.2\d MB/);
    assert.equal(await page.locator('#curve polyline').count(), 2);
    await page.click('#language');
    assert.equal(await page.textContent('#pixel-gated'), '784 / 784');
    assert.match(await page.textContent('#say'), /^最后/);
    assert.deepEqual(page.faults, []);
  },
  'text is written, and forked by a click': async () => {
    const page = await open('text.html');
    await page.click('#go');
    await says(page, /bytes a second/);
    const text = await page.textContent('#story');
    assert.ok(text.startsWith('ROMEO:\n') && text.length > 500, text);
    const box = await page.locator('#story').boundingBox();
    await page.mouse.click(box.x + 60, box.y + 45);
    await page.waitForFunction((old) => document.getElementById('story').textContent !== old, text);
    await says(page, /bytes a second/);
    const other = await page.textContent('#story');
    const given = await page.textContent('#story .given');
    assert.ok(given.length > 3 && text.startsWith(given) && other.startsWith(given) && other !== text);
    assert.deepEqual(page.faults, []);
  },
  'the memory of the network is shown, and changes': async () => {
    const page = await open('hood.html');
    await page.fill('#speed', '9');
    await page.click('#go');
    await page.waitForFunction(() => /^2\d\d/.test(document.getElementById('position').textContent));
    const pictures = () => page.$$eval('#heads canvas', (all) => all.map((canvas) => canvas.toDataURL()));
    const before = await pictures();
    assert.equal(before.length, 24);
    assert.equal(new Set(before).size, 24);
    await says(page, /Done/);
    const after = await pictures();
    assert.ok(after.every((picture, i) => picture !== before[i]));
    assert.match(await page.textContent('#memory'), /^206 kB/);
    assert.deepEqual(page.faults, []);
  },
  'phones are heard in a file': async () => {
    const page = await open('speech.html');
    assert.equal(await inked(page), 0);
    const choose = async (name, buffer) => {
      const chooser = page.waitForEvent('filechooser');
      await page.click('#choose');
      await (await chooser).setFiles({ name, mimeType: 'audio/wav', buffer });
    };
    await choose('buzz.wav', wav(20));
    await says(page, /has \d+ phones/);
    const phones = await page.$$eval('#phones span', (all) => all.map(({ textContent }) => textContent.trim()));
    assert.ok(phones.length > 5 && phones.every((name) => /^[A-Z]{1,3}$/.test(name)), String(phones));
    assert.ok(await page.locator('#marks span').count() > 0);
    assert.ok(await inked(page) > 0.1);
    assert.equal(await page.textContent('#length'), '20.0 s');
    assert.match(await page.textContent('#memory'), /^\d+ kB/);
    const [, times] = /^(\d+) times real time/.exec(await page.textContent('#speed'));
    console.log(`        phones at ${times} times real time`);
    await page.click('#language');
    assert.match(await page.textContent('#say'), /个音素/);
    await page.click('#language');
    await choose('quiet.wav', wav(0.5).fill(0, 44));
    await says(page, /No phones/);
    await choose('text.txt', Buffer.from('not a sound'));
    await says(page, /cannot read text.txt/);
    assert.deepEqual(page.faults, []);
  },
  'phones are heard from a microphone, until the visitor stops it': async () => {
    const page = await open('speech.html', { permissions: ['microphone'] });
    await page.click('#record');
    await page.waitForFunction(() => parseFloat(document.getElementById('length').textContent) > 2);
    assert.ok(await inked(page) > 0);
    await page.keyboard.press('Escape');
    await says(page, /Stopped/);
    await page.waitForTimeout(100);  // for the last frame of the display
    const length = await page.textContent('#length');
    await page.waitForTimeout(300);
    assert.equal(await page.textContent('#length'), length);
    assert.deepEqual(page.faults, []);
    const blocked = await open('speech.html');
    await blocked.click('#record');
    await says(blocked, /microphone is blocked/);
  },
  'a couplet is answered without a server': async () => {
    const page = await open('couplet.html');
    await page.fill('#first', '海上明月');
    await page.keyboard.press('Enter');
    await says(page, /\d answers/);
    assert.equal([...await page.textContent('#down')].length, 4);
    assert.equal(await page.locator('#list li:first-child span[title*="Probability"]').count(), 4);
    const lines = await page.textContent('#list');
    await page.fill('#first', '');
    await page.reload();  // the address holds the first line
    await says(page, /\d answers/);
    assert.equal(await page.textContent('#list'), lines);
    await page.fill('#first', '天Q地');
    await page.keyboard.press('Enter');
    await says(page, /does not know Q/);
    assert.match(await page.textContent('footer'), /in your browser/);
    assert.deepEqual(page.faults, []);
  },
  'linnet serve shows the pages, and its models are there': async () => {
    const models = ['couplet', 'shakespeare'].map((name) => `models/${name}.safetensors`);
    const own = await serve(process.argv[3], models, '--site', site, '--max-body', '2000');
    const visit = (name) => open(name, { from: own.url, bypassCSP: false, permissions: ['microphone'] });
    try {
      const digits = await visit('');
      await says(digits, /µs a pixel/);
      await digits.click('#test');
      await says(digits, /µs a pixel/);
      const couplets = await visit('couplet.html');
      await couplets.waitForFunction(() => /by the server/.test(document.querySelector('footer').textContent));
      await couplets.fill('#first', '海上明月');
      await couplets.keyboard.press('Enter');
      await says(couplets, /\d answers/);
      assert.match(await couplets.textContent('footer'), /by the server/);
      const text = await visit('text.html');
      await text.selectOption('#model', 'shakespeare');
      assert.match(await text.textContent('footer'), /by the server/);
      await text.click('#go');
      await says(text, /computed by the server/);
      assert.ok((await text.textContent('#story')).length > 500);
      await text.fill('#prompt', 'A'.repeat(3000));
      await text.click('#go');
      await says(text, /failed: the body is larger than 2000 bytes/);
      await text.selectOption('#model', '');
      await text.fill('#prompt', 'JULIET:');
      await text.click('#go');
      await says(text, /bytes a second/);
      assert.match(await text.textContent('footer'), /in your browser/);
      const speech = await visit('speech.html');
      await speech.click('#record');
      await speech.waitForFunction(() => parseFloat(document.getElementById('length').textContent) > 1);
      for (const page of [digits, couplets, speech]) assert.deepEqual(page.faults, []);
    } finally {
      own.stop();
    }
  },
  'a model that is missing is named': async () => {
    const missing = (one) => one.route('**/models/*', (route) => route.fulfill({ status: 404 }));
    const page = await open('text.html', { before: missing, serviceWorkers: 'block' });
    await page.click('#go');
    await says(page, /failed: .*shakespeare.safetensors: 404/);
    await page.unroute('**/models/*');
    await page.click('#go');  // and the next try works
    await says(page, /bytes a second/);
  },
  'on a slow line and a slow processor, the visitor sees how far the download is, and then the work': async () => {
    const slow = async (page) => {
      const session = await page.context().newCDPSession(page);
      await session.send('Emulation.setCPUThrottlingRate', { rate: 4 });
      await session.send('Network.emulateNetworkConditions',
        { offline: false, latency: 100, downloadThroughput: 1e6, uploadThroughput: 1e5 });
    };
    const seen = (one) => one.addInitScript(() => {  // every message of the page, in order
      window.seen = [];
      new MutationObserver(() => window.seen.push(document.getElementById('say')?.textContent ?? ''))
        .observe(document, { childList: true, subtree: true, characterData: true });
    });
    const page = await open('text.html', { before: async (one) => { await seen(one); await slow(one); }, serviceWorkers: 'block' });
    await page.click('#go');
    await says(page, /bytes a second/);
    const messages = await page.evaluate(() => window.seen.filter((text, i, all) => text !== all[i - 1]));
    const order = [/^Writing/, /^Downloading the model [1-9]0 %/, /^Writing/, /bytes a second/];
    let next = 0;
    for (const message of messages) if (order[next]?.test(message)) ++next;
    assert.equal(next, order.length, String(messages));
    assert.deepEqual(page.faults, []);
  },
  'pages that were loaded work offline': async () => {
    const page = await open('text.html');
    await page.evaluate(() => navigator.serviceWorker.ready);
    await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    await page.click('#go');
    await says(page, /bytes a second/);
    await page.context().setOffline(true);
    await page.reload();
    await page.click('#go');
    await says(page, /bytes a second/);
  },
  'a page says that an old browser is too old': async () => {
    const page = await open('', { before: (one) => one.addInitScript(() => { WebAssembly.validate = () => false; }) });
    await says(page, /too old/);
    assert.deepEqual(page.faults, []);
  },
  'nothing jumps, and the page stays responsive while the network works': async () => {
    const buzz = path.join(mkdtempSync(path.join(tmpdir(), 'linnet-')), 'buzz.wav');
    writeFileSync(buzz, wav(20));
    for (const [name, end] of [['index.html', /µs a pixel/], ['race.html', /times the memory/], ['text.html', /bytes a second/],
      ['speech.html', /phones/]]) {
      const watch = (page) => page.addInitScript(() => {
        window.facts = { shift: 0, load: 0, work: 0 };  // longest tasks while the page loads, and later
        new PerformanceObserver((list) => list.getEntries().forEach(({ value }) => { window.facts.shift += value; }))
          .observe({ type: 'layout-shift', buffered: true });
        new PerformanceObserver((list) => list.getEntries().forEach(({ startTime, duration }) => {
          const [{ loadEventEnd }] = performance.getEntriesByType('navigation');
          const when = loadEventEnd > 0 && startTime >= loadEventEnd ? 'work' : 'load';
          window.facts[when] = Math.max(window.facts[when], duration);
        })).observe({ type: 'longtask', buffered: true });
      });
      const begin = performance.now();
      const page = await open(name, { before: watch });
      if (name === 'speech.html') {
        await page.setInputFiles('#file', buzz);  // a buffer would be decoded on the page's main thread
      } else if (name !== 'index.html') {
        await page.click('#go');
      }
      await says(page, end);
      const { shift, load: early, work } = await page.evaluate(() => window.facts);
      const loaded = await page.evaluate(() => performance.getEntriesByType('resource')
        .reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0));
      // Times and tasks depend on the machine, so they are printed and not checked.
      console.log(`        ${name}: ${((performance.now() - begin) / 1000).toFixed(1)} s, longest task ${Math.round(early)} ms while it loads, ${Math.round(work)} ms later, ` +
        `layout shift ${shift.toFixed(3)}, ${(loaded / 1e3).toFixed(0)} kB loaded, the worker's not counted`);
      assert.ok(shift < 0.02, `${name}: layout shift ${shift}`);
    }
    rmSync(path.dirname(buzz), { recursive: true });
  },
  'on every page, axe-core finds nothing serious and nothing scrolls sideways': async () => {
    for (const name of PAGES) {
      for (const [colorScheme, locale, width] of [['light', 'en-GB', 1100], ['dark', 'zh-CN', 360], ['light', 'zh-CN', 768], ['dark', 'en-GB', 320]]) {
        const page = await open(name, { colorScheme, locale, viewport: { width, height: 800 } });
        if (name === 'index.html') await says(page, /µs|微秒/);
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => window.axe.run());
        const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
        assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), [], `${name} ${colorScheme} ${locale}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `${name} at ${width}: ${wide} too wide`);
        assert.equal(await page.locator('nav a').count(), PAGES.length);
        assert.equal(await page.locator('nav a[aria-current]').count(), 1, name);
        if (locale === 'zh-CN') assert.match(await page.textContent('h1'), /[\u4e00-\u9fff]/);
        assert.deepEqual(page.faults, [], name);
        await page.context().close();
      }
    }
  },
}, async () => {
  await browser.close();
  server.close();
});
