// The page of text. A language model continues a prompt: the studio's model of bytes, in this browser, or a model of the
// server. If the visitor clicks a character of the text, the model continues from there.
'use strict';
const at = id => document.getElementById(id);
const TOKENS = 600;
let given = '', written = '';  // the story: the prompt, and its continuation by the network

studio.begin({
  zh: {
    title: '写作 · linnet', heading: '续写莎士比亚',
    lead: '一个只有几兆字节的语言模型逐字节续写。它读过一百万个莎士比亚的字母，别的什么都没读过。',
    prompt: '开头', go: '续写', stop: '停', temperature: '温度', top: 'top-p', story: '写出的文字',
    working: '正在写……', stopped: '停了。', done: '每秒 {rate} 字节；状态 {state}，始终不变。',
    fork: '点一下文字中的任何字符，网络就从那里另写一段；按回车键，从末尾继续。', empty: '先写一个开头。',
    model: '模型', here: '莎士比亚，在这个浏览器里', served: '每秒 {rate} 个字符，由服务器计算。',
  },
  en: {
    title: 'Text · linnet', heading: 'A network continues Shakespeare',
    lead: 'A language model of a few megabytes writes byte by byte. It has read a million letters of Shakespeare, and ' +
      'nothing else.',
    prompt: 'Beginning', go: 'Continue', stop: 'Stop', temperature: 'Temperature', top: 'Top-p', story: 'The text',
    working: 'Writing …', stopped: 'Stopped.', done: '{rate} bytes a second; the state is {state} at every byte.',
    fork: 'Click any character of the text: the network continues from there in another way. The Enter key continues ' +
      'from the end.',
    empty: 'Write a beginning first.', model: 'Model', here: 'Shakespeare, in this browser',
    served: '{rate} characters a second, computed by the server.',
  },
});

function show() {
  const old = document.createElement('span');
  old.className = 'given';
  old.textContent = given;
  at('story').replaceChildren(old, document.createTextNode(written));
}

function add(text) {
  written += text;
  show();
}

// The two places where a model can run. Both resolve to the message at the end.
async function writeHere(options, signal) {
  const {tokensPerSecond, stateBytes} = await studio.run('write', {...studio.models.text, ...options}, {
    signal, handle: (_, data) => add(data.text)});
  return ['done', {rate: Math.round(tokensPerSecond), state: studio.bytes(stateBytes)}];
}

async function writeThere(model, {tokens, topP, ...same}, signal) {
  const begin = performance.now();
  await shell.stream('v1/completions', {...same, model, max_tokens: tokens, top_p: topP, stream: true}, (_, data) => {
    if (data.error) throw new Error(data.error.message);
    add(data.choices[0]?.text ?? '');
  }, signal);
  return ['served', {rate: Math.round(1000 * [...written].length / (performance.now() - begin))}];
}

function write(prompt) {
  if (prompt === '') return shell.say(['empty']);
  return studio.work(async signal => {
    given = prompt;
    written = '';
    show();
    const options = {
      prompt, tokens: TOKENS, seed: studio.seed(), temperature: Number(at('temperature').value),
      topP: Number(at('top').value),
    };
    const model = at('model').value;
    return model === '' ? writeHere(options, signal) : writeThere(model, options, signal);
  });
}

// The text of the story before a boundary point of the DOM: `offset` in `node`.
function textBefore(node, offset) {
  const before = document.createRange();
  before.setStart(at('story'), 0);
  before.setEnd(node, offset);
  return before.toString();
}

// Lets the visitor choose among this browser and the server's models, if there are any.
studio.served('text').then(names => {
  at('model').append(...names.map(name => new Option(name, name)));
  at('models').hidden = names.length === 0;
});
at('model').addEventListener('change', () => studio.computes(at('model').value !== ''));
at('go').addEventListener('click', () => write(at('prompt').value));
at('story').addEventListener('click', event => {
  if (getSelection().toString() !== '') return;  // a selection for copying is no click
  const position = document.caretPositionFromPoint?.(event.clientX, event.clientY);
  const range = position ? null : document.caretRangeFromPoint?.(event.clientX, event.clientY);
  const node = position?.offsetNode ?? range?.startContainer;
  if (!node || !at('story').contains(node)) return;
  const text = textBefore(node, position?.offset ?? range.startOffset);
  if (text !== '') write(text);
});
at('story').addEventListener('keydown', event => {
  if (event.key !== 'Enter') return;
  event.preventDefault();
  const focus = getSelection().focusNode;
  const text = focus && at('story').contains(focus) ? textBefore(focus, getSelection().focusOffset) : given + written;
  write(text === '' ? given + written : text);
});
