// The page of digits. The visitor draws the upper part of a digit on a sheet of 28 x 28 pixels, and the network draws
// the part below the cut, the dashed line.
'use strict';
const SIDE = 28, COUNT = 6;
const at = id => document.getElementById(id);
const paper = at('paper');
let drawing = new Float32Array(SIDE * SIDE);  // 0 .. 255, white on black as in MNIST
let surprise = null;  // -log2 p of each pixel of the drawing, in bits; null: not computed yet
let answers = [];  // the continuations in the gallery: {pixels, bits, canvas}
let erasing = false, cursor = null;  // cursor: {x, y} of the pixel that the arrow keys have reached

studio.begin({
  zh: {
    title: '数字 · linnet', heading: '画半个数字，网络来画完',
    lead: '在虚线以上画。虚线以下由网络一个像素接一个像素地续写：每个像素花的时间相同，网络的记忆也从不变大。',
    paper: '画纸，28 × 28 像素。用鼠标或手指画；也可以用方向键移动，用空格键画', cut: '虚线的位置（行）', erase: '橡皮', clear: '清空',
    test: '测试图', dream: '让网络自己画', go: '续写', stop: '停', heat: '显示意外程度', temperature: '温度',
    empty: '先在虚线以上画一点东西，或者让网络自己画。', working: '正在续写……',
    done: '每像素 {time} 微秒；每幅图的状态 {state}，始终不变。', stopped: '停了。',
    explain: '选“显示意外程度”后，越红的像素越出乎网络的意料（-log₂ p，以比特计）。模型用论文 Transformers are RNNs 的因果线性注意力，' +
      '共 4 层，宽 192，在 MNIST 上训练。',
    answer: '第 {n} 个续写',
  },
  en: {
    title: 'Digits · linnet', heading: 'Draw half a digit. A network finishes it.',
    lead: 'Draw above the dashed line. Below the line, the network continues, pixel by pixel: each pixel takes the ' +
      'same time, and the memory of the network never grows.',
    paper: 'Sheet of 28 x 28 pixels. Draw with mouse or finger, or move with arrow keys and draw with the space bar',
    cut: 'Position of the dashed line, in rows', erase: 'Eraser', clear: 'Clear', test: 'Test image',
    dream: 'Let the network draw', go: 'Finish it', stop: 'Stop', heat: 'Show surprise', temperature: 'Temperature',
    empty: 'Draw something above the dashed line first, or let the network draw.', working: 'Drawing …',
    done: '{time} µs a pixel; the state of an image is {state} at every pixel.', stopped: 'Stopped.',
    explain: 'With “Show surprise”: the less the network expected a pixel, the redder it appears (-log₂ p, in bits). ' +
      'The model has the causal linear attention of the paper “Transformers are RNNs”, in 4 layers of width 192, and ' +
      'was trained on MNIST.',
    answer: 'Continuation {n}',
  },
});

const rows = () => Number(at('cut').value);  // the rows above the dashed line
const bytes = () => Uint8Array.from(drawing, Math.round);

function show() {
  studio.paint(paper, bytes(), {heat: at('heat').checked ? surprise : null});
  at('cut-line').style.top = `${100 * rows() / SIDE}%`;
  if (cursor !== null && document.activeElement === paper) {
    const context = paper.getContext('2d');
    context.fillStyle = '#1d5fbf';
    context.fillRect(cursor.x, cursor.y, 1, 1);
  }
  for (const {canvas, pixels, bits} of answers) {
    studio.paint(canvas, pixels, {heat: at('heat').checked ? bits : null});
  }
}

// Draws or erases a stroke between two points. Ink is full up to 0.6 pixels from the stroke and ends at 1.6 pixels.
function stroke(from, to) {
  if (studio.working !== null) {  // answers of running work would not match the changed drawing
    studio.quit();
    shell.say();
  }
  const [dx, dy] = [to.x - from.x, to.y - from.y], length = Math.hypot(dx, dy) || 1;
  for (let y = 0; y < SIDE; ++y) {
    for (let x = 0; x < SIDE; ++x) {
      const [px, py] = [x + 0.5 - from.x, y + 0.5 - from.y];
      const along = Math.min(1, Math.max(0, (px * dx + py * dy) / (length * length)));
      const distance = Math.hypot(px - along * dx, py - along * dy);
      const ink = 255 * Math.min(1, Math.max(0, 1.6 - distance)), p = y * SIDE + x;
      drawing[p] = erasing ? Math.min(drawing[p], 255 - ink) : Math.max(drawing[p], ink);
    }
  }
  surprise = null;
  show();
}

function point(event) {
  const box = paper.getBoundingClientRect();
  return {x: SIDE * (event.clientX - box.left) / box.width, y: SIDE * (event.clientY - box.top) / box.height};
}

let last = null;  // the last point of the stroke in progress
paper.addEventListener('pointerdown', event => {
  if (!event.isPrimary || event.button !== 0) return;
  paper.setPointerCapture(event.pointerId);
  last = point(event);
  stroke(last, last);
});
paper.addEventListener('pointermove', event => {
  if (last === null || !event.isPrimary) return;
  for (const moved of event.getCoalescedEvents?.() ?? [event]) {
    const next = point(moved);
    stroke(last, next);
    last = next;
  }
});
for (const end of ['pointerup', 'pointercancel']) {
  paper.addEventListener(end, () => {
    if (last === null) return;
    last = null;
    finish();
  });
}
paper.addEventListener('keydown', event => {
  const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
  if (step === undefined && event.key !== ' ') return;
  event.preventDefault();
  cursor ??= {x: SIDE / 2, y: 4};
  if (step !== undefined) {
    cursor.x = Math.min(SIDE - 1, Math.max(0, cursor.x + step[0]));
    cursor.y = Math.min(SIDE - 1, Math.max(0, cursor.y + step[1]));
  }
  if (event.key === ' ' || event.shiftKey) {
    const center = {x: cursor.x + 0.5, y: cursor.y + 0.5};
    stroke(center, center);
  }
  show();
});
paper.addEventListener('focus', show);
paper.addEventListener('blur', show);

function gallery() {
  answers = Array.from({length: COUNT}, (_, i) => {
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = SIDE;
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', shell.filled('answer', {n: i + 1}));
    return {canvas, pixels: new Uint8Array(SIDE * SIDE), bits: new Float32Array(SIDE * SIDE)};
  });
  at('answers').replaceChildren(...answers.map(({canvas}) => {
    const item = document.createElement('li');
    item.append(canvas);
    return item;
  }));
}

// Continues the image whose first bytes are `known`: six times in the gallery or, with `alone`, once on the sheet.
async function continueFrom(known, alone, seed, signal) {
  const temperature = Number(at('temperature').value);
  const given = {...studio.models.digits, known, count: alone ? 1 : COUNT, seed, temperature};
  const {microseconds, stateBytes} = await studio.run('complete', given, {signal, handle(_, data) {
    if (alone) {
      drawing.set(data.bytes[0], data.from);
      surprise.set(data.bits[0], data.from);
    } else {
      answers.forEach(({pixels, bits}, i) => {
        pixels.set(data.bytes[i], data.from);
        bits.set(data.bits[i], data.from);
      });
    }
    show();
  }});
  return ['done', {time: Math.round(microseconds), state: studio.bytes(stateBytes)}];
}

// Continues the rows above the dashed line, in the gallery.
function finish() {
  const known = bytes().slice(0, rows() * SIDE);
  if (!known.some(byte => byte > 0)) {
    studio.quit();
    return shell.say(['empty']);
  }
  return studio.work(async signal => {
    surprise = (await studio.run('surprise', {...studio.models.digits, image: bytes()}, {signal})).bits;
    gallery();
    for (const answer of answers) {
      answer.pixels.set(known);
      answer.bits.set(surprise.subarray(0, known.length));
    }
    show();
    return continueFrom(known, false, studio.seed(), signal);
  });
}

// Empties the sheet and the gallery.
function clear() {
  drawing.fill(0);
  surprise = null;
  answers = [];
  at('answers').replaceChildren();
  show();
}

at('go').addEventListener('click', finish);
at('clear').addEventListener('click', () => {
  studio.quit();
  shell.say();
  clear();
});
at('erase').addEventListener('click', () => {
  erasing = !erasing;
  at('erase').setAttribute('aria-pressed', String(erasing));
});
at('dream').addEventListener('click', () => studio.work(signal => {
  clear();
  surprise = new Float32Array(SIDE * SIDE);
  return continueFrom(Uint8Array.of(0), true, studio.seed(), signal);
}));
// The test images: the first one of each digit in MNIST's test set, in one picture, one below the other.
const tests = new Image(), TESTS = 10;
tests.src = 'test-digits.png';
let tested = 0;
at('test').addEventListener('click', async () => {
  try {
    await tests.decode();
  } catch {
    return shell.say(['failed', {message: 'test-digits.png'}]);
  }
  const sheet = new OffscreenCanvas(SIDE, SIDE).getContext('2d');
  sheet.drawImage(tests, 0, -SIDE * (tested++ % TESTS));
  const colors = sheet.getImageData(0, 0, SIDE, SIDE).data;  // red, green, blue and opacity of each pixel
  studio.quit();
  drawing = Float32Array.from(drawing, (_, p) => colors[4 * p]);
  finish();
});
at('cut').addEventListener('input', show);
at('cut').addEventListener('change', finish);
at('heat').addEventListener('change', show);
at('temperature').addEventListener('change', finish);
document.addEventListener('language', () => answers.forEach(({canvas}, i) =>
  canvas.setAttribute('aria-label', shell.filled('answer', {n: i + 1}))));
show();
at('dream').click();
