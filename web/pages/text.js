// The page of text: a language model of bytes continues a prompt. A click on a character continues from there.
'use strict';
const at = id => document.getElementById(id);
const TOKENS = 600;
let given = '', written = '', working = null;

const ready = studio.begin({
  zh: {
    title: '写作 · linnet', heading: '续写莎士比亚',
    lead: '一个只有几兆字节的语言模型逐字节续写。它读过一百万个莎士比亚的字母，别的什么都没读过。',
    prompt: '开头', go: '续写', stop: '停', temperature: '温度', top: 'top-p', story: '写出的文字',
    working: '正在写……', stopped: '停了。', done: '每秒 {rate} 字节；状态 {state}，始终不变。',
    fork: '点一下文字中的任何字符，网络就从那里另写一段：到那里为止的状态是一个值，可以复制。', empty: '先写一个开头。',
  },
  en: {
    title: 'Text · linnet', heading: 'It continues Shakespeare',
    lead: 'A language model of a few megabytes writes byte by byte. It has read a million letters of Shakespeare, and ' +
      'nothing else.',
    prompt: 'Beginning', go: 'Continue', stop: 'Stop', temperature: 'Temperature', top: 'Top-p', story: 'The text',
    working: 'Writing …', stopped: 'Stopped.', done: '{rate} bytes a second; the state is {state} at every byte.',
    fork: 'Click any character of the text to continue from there in another way: the state up to there is a value ' +
      'that can be copied.',
    empty: 'Write a beginning first.',
  },
});

function show() {
  const old = document.createElement('span');
  old.className = 'given';
  old.textContent = given;
  at('story').replaceChildren(old, document.createTextNode(written));
}

async function write(prompt) {
  if (!ready) return;
  if (prompt === '') return studio.say('empty');
  working?.abort();
  const mine = working = new AbortController();
  given = prompt;
  written = '';
  show();
  at('stop').hidden = false;
  studio.say('working');
  try {
    const options = {
      prompt, tokens: TOKENS, seed: studio.seed(), temperature: Number(at('temperature').value),
      topP: Number(at('top').value),
    };
    const result = await studio.run('write', {...studio.models.text, ...options}, {signal: mine.signal,
      handle(event, data) {
        if (mine !== working || mine.signal.aborted) return;
        if (event === 'loading') return studio.loading(data);
        if (written === '') studio.say('working');
        written += data.text;
        show();
      }});
    if (mine !== working) return;
    if (mine.signal.aborted || result.stopped) studio.say('stopped');
    else studio.say('done', {rate: Math.round(result.tokensPerSecond), state: studio.bytes(result.stateBytes)});
  } catch (error) {
    if (mine === working) studio.failed(error);
  } finally {
    if (mine === working) {
      working = null;
      at('stop').hidden = true;
    }
  }
}

at('go').addEventListener('click', () => write(at('prompt').value));
at('stop').addEventListener('click', () => working?.abort());
document.addEventListener('keydown', event => event.key === 'Escape' && working?.abort());
at('story').addEventListener('click', event => {
  if (getSelection().toString() !== '') return;  // a selection for copying is no click
  const range = document.caretRangeFromPoint?.(event.clientX, event.clientY);
  if (!range || !at('story').contains(range.startContainer)) return;
  const before = document.createRange();
  before.setStart(at('story'), 0);
  before.setEnd(range.startContainer, range.startOffset);
  const text = before.toString();
  if (text !== '') write(text);
});
