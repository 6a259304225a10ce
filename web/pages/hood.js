// The page "Under the hood": shows the memory of a network while it draws, the sum of phi(k) v^T of each head as a
// picture.
'use strict';
const at = id => document.getElementById(id);
const SIDE = 28;
const DELAYS = [1000, 500, 300, 200, 120, 80, 40, 20, 5, 0];  // milliseconds a pixel, by the slider
let heads = [];  // a canvas for each attention head, layer by layer

studio.begin({
  zh: {
    title: '内部 · linnet', heading: '网络记得什么',
    lead: '这就是网络的记忆：每层有六个头，每个头有一张 32 × 32 的表 s（归一项 z 没有画出）。每画一个像素，每张表的数值加上一项，表的大小不变。',
    equations: '线性注意力的递推公式', go: '画一个数字', stop: '停', speed: '速度', working: '正在画……', stopped: '停了。',
    done: '画完了：784 个像素，状态一直是 {state}。', sheet: '正在画的数字', position: '位置', pixel: '像素值', surprise: '意外程度',
    memory: '状态', bits: '{bits} 比特', of: '{n} / 784', head: '第 {layer} 层，第 {head} 个头',
    explain: '红色为正，蓝色为负，按每个头的最大值缩放；一行是一个键的特征，一列是一个值的分量。最近的键和值（至多各八个）还没有加进表里。',
  },
  en: {
    title: 'Under the hood · linnet', heading: 'What the network remembers',
    lead: 'This is the memory of the network: each layer has six heads, and each head has a table s of 32 x 32 ' +
      'numbers (the normalizers z are not shown). Every pixel adds a term to the numbers of a table; no table grows.',
    equations: 'The recurrence of linear attention', go: 'Draw a digit', stop: 'Stop', speed: 'Speed',
    working: 'Drawing …', stopped: 'Stopped.', done: 'Done: 784 pixels; the state stayed at {state}.',
    sheet: 'The digit that is being drawn', position: 'Position', pixel: 'Pixel', surprise: 'Surprise', memory: 'State',
    bits: '{bits} bits', of: '{n} of 784', head: 'Layer {layer}, head {head}',
    explain: 'Red is positive, blue negative, scaled by the largest number of each head. A row is a feature of the keys, ' +
      'a column a component of the values. The latest keys and values, at most eight each, are not in the tables yet.',
  },
});

function label(canvas, i, perLayer) {
  const values = {layer: 1 + Math.floor(i / perLayer), head: 1 + i % perLayer};
  canvas.setAttribute('aria-label', shell.filled('head', values));
  canvas.title = shell.filled('head', values);
}

function show({sums, layers, heads: perLayer, dim}) {
  if (heads.length === 0) {
    heads = Array.from({length: layers * perLayer}, (_, i) => {
      const canvas = document.createElement('canvas');
      canvas.width = canvas.height = dim;
      canvas.setAttribute('role', 'img');
      label(canvas, i, perLayer);
      return canvas;
    });
    at('heads').style.setProperty('--columns', perLayer);
    at('heads').replaceChildren(...heads);
    document.addEventListener('language', () => heads.forEach((canvas, i) => label(canvas, i, perLayer)));
  }
  heads.forEach((canvas, i) => {
    const table = sums.subarray(i * dim * dim, (i + 1) * dim * dim);
    const most = table.reduce((largest, x) => Math.max(largest, Math.abs(x)), 1e-9);
    const context = canvas.getContext('2d'), image = context.createImageData(dim, dim);
    table.forEach((x, p) => {
      const share = Math.sqrt(Math.abs(x) / most), fade = 255 * (1 - share);
      image.data.set(x > 0 ? [255 - 50 * share, fade, fade, 255] : [fade, fade, 255 - 50 * share, 255], 4 * p);
    });
    context.putImageData(image, 0, 0);
  });
}

let last = null;  // data of the worker's last event 'state'
function report() {
  if (last === null) return;
  at('position').textContent = shell.filled('of', {n: last.position + 1});
  at('pixel').textContent = last.byte;
  at('surprise').textContent = shell.filled('bits', {bits: last.bits.toFixed(2)});
}

at('go').addEventListener('click', () => studio.work(async signal => {
  const pixels = new Uint8Array(SIDE * SIDE);
  studio.paint(at('sheet'), pixels);
  const milliseconds = DELAYS[Number(at('speed').value)];
  const {stateBytes} = await studio.run('watch', {file: studio.models.digits.file, seed: studio.seed(), milliseconds},
    {signal, handle(_, data) {
      last = data;
      pixels[data.position] = data.byte;
      studio.paint(at('sheet'), pixels);
      at('memory').textContent = studio.bytes(data.stateBytes);
      report();
      show(data);
    }});
  return ['done', {state: studio.bytes(stateBytes)}];
}));
document.addEventListener('language', report);
studio.paint(at('sheet'), new Uint8Array(SIDE * SIDE));
