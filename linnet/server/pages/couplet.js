// The couplet page: sends a first line, shows second lines while they are generated.
'use strict';
const EXAMPLES = ['海上明月', '春风又绿江南岸', '千山鸟飞绝', '落花人独立', '风声雨声读书声'];
const CANDIDATES = 5;
const at = (id) => document.getElementById(id);
const PACE = matchMedia('(prefers-reduced-motion: reduce)').matches ? 0 : 70;  // milliseconds per character
const pause = () => new Promise((resolve) => setTimeout(resolve, PACE));
let candidates = [], chosen = 0, answered = '', working = null;

shell.begin({
  zh: {
    title: '对联 · linnet', heading: '对对联', first: '上联', go: '对下联', stop: '停', try: '试试：',
    lead: '写一句上联，模型逐字对出下联。它是一个线性注意力模型，像循环网络一样运行：每个字花的时间相同。' +
      '它学的是唐宋律诗中的对仗句，五言、七言对得最好。',
    answers: '候选下联', copy: '复制', copyOf: '复制 {text}', copied: '已复制', working: '正在对……', done: '对好了，共 {n} 句。', one: '对好了。', cut: '回答中断了',
    stopped: '停了。', unknown: '模型不认识：{characters}。',
    failed: '没有对成：{message}', score: '每字 log p {s}', likely: '模型给它的概率：{p}',
    bars: '字下的横线越长，模型给这个字的概率越大。', link: '这些下联的链接',
  },
  en: {
    title: 'Couplets · linnet', heading: 'Answer a couplet', first: 'First line', go: 'Answer',
    stop: 'Stop', try: 'Try:',
    lead: 'Write the first line of a Chinese couplet; the model answers it, character by character. The model is a ' +
      'linear-attention transformer that runs as a recurrent network: every character takes the same time. ' +
      'It learned from regulated verse of the Tang ' +
      'and Song dynasties, so it is best at lines of five and seven characters.',
    answers: 'Second lines to choose from', copy: 'Copy', copyOf: 'Copy {text}', copied: 'Copied', working: 'Writing …',
    done: '{n} answers.', one: 'One answer.', cut: 'the response broke off', stopped: 'Stopped.',
    unknown: 'The model does not know {characters}.',
    failed: 'No answer: {message}', score: 'log p {s} per character', likely: 'Probability in the model: {p}',
    bars: 'The longer the bar under a character, the more likely the model finds it.', link: 'Link to these lines',
  },
});

for (const example of EXAMPLES) {
  const button = document.createElement('button');
  button.type = 'button';
  button.lang = 'zh-CN';
  button.textContent = example;
  button.addEventListener('click', () => { at('first').value = example; ask(); });
  document.querySelector('.examples').append(button);
}

function choose(index) {
  chosen = index;
  const { text = '', scores = [] } = candidates[index] ?? {};
  at('down').textContent = text;
  at('odds').textContent = [...text].map((letter, i) => scores[i] < 0 ? `${letter} ${share(scores[i])}` : '')
    .filter((odds) => odds).join(', ');
  at('list').querySelectorAll('button[aria-pressed]').forEach((button) => {
    button.setAttribute('aria-pressed', String(Number(button.dataset.index) === index));
  });
}

function row(index) {
  const item = document.createElement('li');
  const pick = document.createElement('button');
  pick.type = 'button';
  pick.dataset.index = index;
  pick.setAttribute('aria-pressed', String(index === chosen));
  pick.innerHTML = '<span lang="zh-CN"></span><span class="score"></span>';
  pick.addEventListener('click', () => choose(index));
  const copy = document.createElement('button');
  copy.type = 'button';
  copy.dataset.text = 'copy';
  copy.textContent = shell.text('copy');
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(answered + '\n' + candidates[index].text);
      copy.textContent = shell.text('copied');
      setTimeout(() => { copy.textContent = shell.text('copy'); }, 1500);
    } catch { getSelection().selectAllChildren(pick.firstChild); }
  });
  item.append(pick, copy);
  return item;
}

// The probability of a character, from its log-probability.
function share(score) {
  const percent = 100 * Math.exp(score);
  return percent < 0.1 ? '< 0.1 %' : `${percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
}

// The characters of a line as elements. couplet.css draws a bar of the length --likely under each whose score is known.
function letters({ text, scores = [] }) {
  return [...text].map((character, i) => {
    const letter = document.createElement('span');
    letter.textContent = character;
    if (scores[i] < 0) {  // copied punctuation has 0
      letter.style.setProperty('--likely', Math.max(0.05, 1 + scores[i] / 5));
      letter.title = shell.filled('likely', { p: share(scores[i]) });
    }
    return letter;
  });
}

function show(index) {
  const pick = at('list').querySelector(`[data-index="${index}"]`);
  pick.firstChild.replaceChildren(...letters(candidates[index]));
  const score = candidates[index].score;
  pick.lastChild.textContent = score === undefined ? '' : shell.filled('score', { s: score.toFixed(2) });
  pick.nextSibling.setAttribute('aria-label', shell.filled('copyOf', { text: candidates[index].text }));
  if (index === chosen) at('down').textContent = candidates[index].text;
}

// Shows these candidates; hides the list if there are none.
function list(all) {
  candidates = all;
  at('list').replaceChildren(...candidates.map((_, index) => row(index)));
  candidates.forEach((_, index) => show(index));
  at('answers').hidden = candidates.length === 0;
  choose(0);
}

// Asks for second lines. The address then has the first line and the seed, so that a link repeats the answer.
async function ask(seed = Math.floor(Math.random() * 2 ** 31)) {
  const first = at('first').value.replace(/[\s\u200b\ufeff]/g, '');
  if (!first) return at('first').focus();
  working?.abort();
  const mine = working = new AbortController();
  candidates = Array.from({ length: CANDIDATES }, () => ({ text: '' }));
  chosen = 0;
  answered = first;
  const address = `#${new URLSearchParams({ first, seed })}`;
  history.replaceState(null, '', address);
  at('link').href = address;
  at('list').replaceChildren(...candidates.map((_, index) => row(index)));
  at('up').textContent = first;
  at('down').textContent = '';
  at('pair').hidden = at('answers').hidden = false;
  at('stop').hidden = false;
  shell.say(['working']);
  try {
    let done = null;
    const request = { first, candidates: CANDIDATES, seed, stream: true };
    await shell.couplets(request, async (event, data) => {
      if (mine.signal.aborted) return;
      if (event === 'error') throw new Error(data.error.message);
      if (event === 'done') done = data;
      if (event === 'character') candidates[data.candidate].text += data.text;
      if (event === 'candidate') candidates[data.candidate] = data;
      if (data.candidate !== undefined) show(data.candidate);
      // The server generates a line within milliseconds; the pause makes the writing visible.
      if (event === 'character' && data.candidate === 0) await pause();
    }, mine.signal);
    if (mine.signal.aborted) throw mine.signal.reason;  // Stop was pressed after the end of the stream
    if (!done) throw new Error(shell.text('cut'));
    // The final list: distinct lines, the most likely first.
    list(done.candidates);
    shell.say([candidates.length === 1 ? 'one' : 'done', { n: candidates.length }],
      ...(done.unknown.length ? [['unknown', { characters: done.unknown.join('') }]] : []));
  } catch (error) {
    if (mine !== working) return;
    list(candidates.filter(({ text }) => text));
    if (error.name === 'AbortError') shell.say(['stopped']);
    else shell.say(['failed', { message: () => shell.explain(error) }]);
  } finally {
    if (mine === working) { working = null; at('stop').hidden = true; }
  }
}

at('ask').addEventListener('submit', (event) => { event.preventDefault(); ask(); });
at('stop').addEventListener('click', () => working?.abort());
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') working?.abort();
  const digit = Number(event.key);
  if (document.activeElement !== at('first') && digit >= 1 && digit <= candidates.length) choose(digit - 1);
});
document.addEventListener('language', () => candidates.forEach((_, index) => show(index)));

// Answers the first line in the address, if there is one.
function answerAddress() {
  const given = new URLSearchParams(location.hash.slice(1)), seed = Number(given.get('seed') || NaN);
  if (!given.get('first')) return;
  at('first').value = given.get('first');
  ask(Number.isSafeInteger(seed) && seed >= 0 ? seed : undefined);
}
addEventListener('hashchange', answerAddress);
at('first').focus();
answerAddress();
