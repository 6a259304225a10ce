// Tests the couplet page in a browser: behavior in both languages and themes, on desktop and phone,
// by mouse and keyboard; and accessibility with axe-core.
//
//   node tests/page/page_test.mjs BIN_DIR [MODEL]
import { readFileSync } from 'node:fs';

import { assert, chromium, load, run, serve } from './common.mjs';

const executablePath = chromium();
const { module: { chromium: browserType } } = load('playwright-core');
const axe = readFileSync(load('axe-core').resolve('axe-core'), 'utf8');
const server = await serve(process.argv[2], [process.argv[3] ?? 'models/couplet.safetensors']);
const browser = await browserType.launch({ executablePath, args: ['--no-sandbox'] });

// Opens the page in a browser context with these options. page.faults lists the page's errors and
// its requests to other servers.
async function open(options = {}) {
  const context = await browser.newContext({ locale: 'en-GB', bypassCSP: true, ...options });
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  const page = await context.newPage();
  page.faults = [];
  page.on('pageerror', (error) => page.faults.push(error.message));
  page.on('console', (message) => message.type() === 'error' && page.faults.push(message.text()));
  page.on('request', (request) => request.url().startsWith(server.url) || request.url().startsWith('data:') ||
    page.faults.push(`asks ${request.url()}`));
  await page.goto(server.url);
  return page;
}

const texts = (page) => page.$$eval('#list li > button:first-child span[lang]', (all) => all.map((x) => x.textContent));
const finished = (page) => page.waitForFunction(() => /\d/.test(document.getElementById('say').textContent));

async function answer(page, line) {
  await page.fill('#first', line);
  await page.keyboard.press('Enter');
  await finished(page);
}

await run({
  'an empty form shows no scrolls and no answers': async () => {
    const page = await open();
    for (const id of ['#pair', '#answers', '#stop']) assert.equal(await page.isVisible(id), false, id);
  },
  'a line is answered': async () => {
    const page = await open();
    await answer(page, '海上明月');
    const answers = await texts(page);
    assert.ok(answers.length >= 3 && answers.length <= 5, String(answers));
    for (const text of answers) assert.equal([...text].length, 4);
    assert.equal(await page.textContent('#up'), '海上明月');
    assert.equal(await page.textContent('#down'), answers[0]);
    // The first line is on the right.
    const [up, down] = await Promise.all(['#up', '#down'].map((id) => page.locator(id).boundingBox()));
    assert.ok(up.x > down.x);
    assert.deepEqual(page.faults, []);
  },
  'an answer is written character by character': async () => {
    const page = await open();
    await page.evaluate(() => {
      window.lengths = new Set();
      new MutationObserver(() => window.lengths.add([...document.getElementById('down').textContent].length))
        .observe(document.getElementById('down'), { childList: true, characterData: true, subtree: true });
    });
    await answer(page, '落花人独立');
    assert.ok(await page.evaluate(() => window.lengths.size) >= 2);
  },
  'a click and Escape stop an answer, and Copy takes the line that was answered': async () => {
    const page = await open();
    for (const stop of [() => page.click('#stop'), () => page.keyboard.press('Escape')]) {
      await page.fill('#first', '春风 又绿江南岸');
      await page.press('#first', 'Enter');
      await page.waitForSelector('#stop:not([hidden])');
      await stop();
      await page.waitForFunction(() => document.getElementById('say').textContent === 'Stopped.');
    }
    assert.equal(await page.textContent('#up'), '春风又绿江南岸');  // blanks are ignored
    await answer(page, '落花人独立');
    const answers = await texts(page);
    await page.fill('#first', '海上明月');
    await page.click('#list li:first-child > button:last-child');
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), `落花人独立\n${answers[0]}`);
    assert.deepEqual(page.faults, []);
  },
  'candidates are chosen by mouse and by keyboard, and copied': async () => {
    const page = await open();
    await answer(page, '春风又绿江南岸');
    const answers = await texts(page);
    await page.click('#list li:nth-child(2) > button:first-child');
    assert.equal(await page.textContent('#down'), answers[1]);
    await page.keyboard.press('3');
    assert.equal(await page.textContent('#down'), answers[2]);
    assert.equal(await page.getAttribute('#list li:nth-child(3) > button:first-child', 'aria-pressed'), 'true');
    await page.click('#list li:nth-child(3) > button:last-child');
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), `春风又绿江南岸\n${answers[2]}`);
    // All controls are reachable with the Tab key.
    const reached = new Set();
    for (let i = 0; i < 40; ++i) {
      await page.keyboard.press('Tab');
      reached.add(await page.evaluate(() => document.activeElement?.textContent?.trim()));
    }
    for (const text of ['Answer', 'Copy', '中文', '海上明月']) assert.ok(reached.has(text), `${text} of ${[...reached]}`);
    assert.deepEqual(page.faults, []);
  },
  'examples are a click away': async () => {
    const page = await open();
    await page.click('.examples button:first-of-type');
    await finished(page);
    assert.equal(await page.inputValue('#first'), await page.textContent('.examples button:first-of-type'));
  },
  'a refusal is said, and the next line works': async () => {
    const page = await open();
    await page.route('**/v1/couplets', (route) => route.fulfill(
      { status: 429, contentType: 'application/json', body: '{"error": {"message": "come again"}}' }), { times: 1 });
    await page.fill('#first', '海上明月');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.getElementById('say').textContent.includes('come again'));
    assert.equal(await page.isVisible('#answers'), false);  // nothing to copy
    await answer(page, '海上明月');
    await page.fill('#first', ' ');
    await page.keyboard.press('Enter');
    assert.equal(page.faults.filter((fault) => !fault.includes('429')).length, 0, String(page.faults));
  },
  'a refusal is said in Chinese on a Chinese page': async () => {
    const page = await open({ locale: 'zh-CN' });
    await page.fill('#first', '海\u0007月');
    await page.evaluate(() => { document.getElementById('first').value = '海\u0007月'; });
    await page.press('#first', 'Enter');
    await page.waitForFunction(() => document.getElementById('say').textContent.startsWith('没有对成'));
    assert.match(await page.textContent('#say'), /^没有对成：[^A-Za-z]+$/);
  },
  'every copy button has its own name': async () => {
    const page = await open();
    await answer(page, '海上明月');
    const names = await page.$$eval('#list li > button:last-child', (all) => all.map((x) => x.getAttribute('aria-label')));
    assert.equal(new Set(names).size, names.length);
    for (const [i, text] of (await texts(page)).entries()) assert.equal(names[i], `Copy ${text}`);
  },
  'every character has a bar and its probability': async () => {
    const page = await open();
    await answer(page, '海上，明月');
    const letters = await page.$$eval('#list li:first-child span[lang] > span', (all) => all.map((one) =>
      [one.textContent, Number(one.style.getPropertyValue('--likely')), one.title]));
    assert.equal(letters.length, 5);
    for (const [letter, likely, title] of letters) {
      if (letter === '，') assert.deepEqual([likely, title], [0, '']);
      else assert.ok(likely > 0 && likely < 1 && /Probability in the model: [<\d. ]+%/.test(title), `${letter} ${likely} ${title}`);
    }
  },
  'a link repeats the answer': async () => {
    const page = await open();
    await answer(page, '海上明月');
    const lines = await texts(page), link = await page.getAttribute('#link', 'href');
    assert.equal(new URL(page.url()).hash, link);
    await page.goto('about:blank');
    await page.goto(`${server.url}/${link}`);
    await finished(page);
    assert.deepEqual(await texts(page), lines);
    assert.equal(await page.textContent('#up'), '海上明月');
    await page.goto(`${server.url}/#first=%E9%9B%A8&seed=x`);  // a seed that is no number: a random one
    await page.waitForFunction(() => document.getElementById('up').textContent === '雨');
    assert.deepEqual(page.faults, []);
  },
  'characters that the model does not know are named': async () => {
    const page = await open();
    await answer(page, '天\u{20BB7}地');
    assert.match(await page.textContent('#say'), /\u{20BB7}/u);
  },
  'markup is text': async () => {
    const page = await open();
    await page.fill('#first', '<b>海</b>');
    await page.keyboard.press('Enter');
    await finished(page);
    assert.equal(await page.textContent('#up'), '<b>海</b>');
    assert.equal(await page.$('#up b'), null);
  },
  'language and theme are kept': async () => {
    const page = await open({ colorScheme: 'light' });
    assert.equal(await page.textContent('h1'), 'Answer a couplet');
    await page.click('#language');
    await page.click('#theme');
    assert.equal(await page.textContent('h1'), '对对联');
    await page.reload();
    assert.equal(await page.textContent('h1'), '对对联');
    assert.equal(await page.evaluate(() => document.documentElement.lang), 'zh-CN');
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
    const chinese = await open({ locale: 'zh-CN' });
    assert.equal(await chinese.textContent('h1'), '对对联');
  },
  'axe-core finds nothing serious, and nothing scrolls sideways': async () => {
    for (const colorScheme of ['light', 'dark']) {
      for (const [locale, width] of [['en-GB', 1000], ['zh-CN', 320]]) {
        const page = await open({ colorScheme, locale, viewport: { width, height: 700 } });
        for (const state of ['empty', 'answered']) {
          if (state === 'answered') await answer(page, '风声雨声读书声，声声入耳');
          await page.evaluate(axe);
          const { violations } = await page.evaluate(() => window.axe.run());
          const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
          assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), [], `${colorScheme} ${locale}`);
          const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(wide <= 0, `${width} wide, ${state}: ${wide} too much`);
        }
        assert.deepEqual(page.faults, []);
      }
    }
  },
}, async () => {
  await browser.close();
  server.stop();
});
