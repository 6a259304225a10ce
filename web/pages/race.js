// The race: two networks of the same size draw a digit each, pixel by pixel, on the visitor's machine. One has a state
// of constant size, the other a cache of all keys and values.
'use strict';
const at = id => document.getElementById(id);
const LANES = ['gated', 'softmax'], PIXELS = 784;
let laps = {gated: [], softmax: []};  // [pixels drawn, microseconds per pixel] of each event 'lap' of the worker

studio.begin({
  zh: {
    title: '赛跑 · linnet', heading: '循环网络与 softmax 赛跑',
    lead: '两个一样大的网络，都在你的机器上运行。左边网络的状态大小不变；右边网络的 softmax 注意力要回看以前的每一个像素，' +
      '因此越画越慢，记忆也越来越大。',
    go: '开始', stop: '停', gated: '门控 delta 规则（循环）', softmax: 'softmax（缓存）', sheet: '正在画的数字',
    time: '每像素', memory: '所用记忆', pixel: '已画', curve: '每像素的微秒数，横轴是像素的位置', working: '正在画……', stopped: '停了。',
    done: '最后几十个像素：softmax 每像素用时是循环网络的 {times} 倍，记忆是 {memory} 倍。', axis: '像素', micro: '微秒',
    explain: '两个网络都有 4 层，宽 128，在 MNIST 上训练。这里的图有 28 × 28 个像素。序列越长，差距越大：32 × 32 像素的彩色图有 3,072 个字节。',
    of: '{n} / 784',
  },
  en: {
    title: 'Race · linnet', heading: 'A recurrent network races softmax',
    lead: 'Two networks of the same size on one machine: yours. The left one has a state of constant size. The right ' +
      'one, with softmax attention, looks back at every earlier pixel, so it slows down and its memory grows.',
    go: 'Start', stop: 'Stop', gated: 'Gated delta rule (recurrent)', softmax: 'Softmax (cache)',
    sheet: 'The digit that is being drawn', time: 'Time per pixel', memory: 'Memory in use', pixel: 'Drawn',
    curve: 'Microseconds per pixel, by position of the pixel', working: 'Drawing …', stopped: 'Stopped.',
    done: 'At the end, softmax took {times} times as long per pixel, and {memory} times the memory.',
    axis: 'pixel', micro: 'µs', of: '{n} of 784',
    explain: 'Both networks have 4 layers of width 128 and were trained on MNIST. These images have 28 x 28 pixels. ' +
      'The longer the sequence, the wider the gap: a color image of 32 x 32 pixels is a sequence of 3,072 bytes.',
  },
});

// Smooths the times of a lane (one of the two networks): each time becomes the mean over the laps that ended within the
// last fifty pixels, weighted by the pixels of a lap.
function smooth(lane) {
  return laps[lane].map(([position], i) => {
    let sum = 0, pixels = 0;
    for (let j = i; j >= 0 && position - laps[lane][j][0] < 50; --j) {
      const width = laps[lane][j][0] - (laps[lane][j - 1]?.[0] ?? 1);
      sum += laps[lane][j][1] * width;
      pixels += width;
    }
    return [position, sum / pixels];
  });
}

let plotted = 0;  // the time at which plot() last ended
function plot() {
  const curves = LANES.map(lane => smooth(lane));
  // The axis ends at 1.3 times the 90th percentile of the times. The first pixels may be slower than that, while the
  // browser still compiles the engine; their times are cut off.
  const times = curves.flat().map(([, time]) => time).sort((a, b) => a - b);
  const most = 1.3 * Math.max(1, times[Math.floor(0.9 * (times.length - 1))] ?? 1);
  const x = position => 48 + 580 * position / PIXELS, y = time => 190 - 170 * Math.min(1, time / most);
  const parts = [`<line x1="48" y1="190" x2="628" y2="190" stroke="currentColor"/>`,
    `<text x="628" y="212" text-anchor="end">${shell.text('axis')} ${PIXELS}</text>`];
  const step = 10 ** Math.floor(Math.log10(most / 2)), lines = Math.floor(most / step);
  for (let i = 0; i <= lines; i += Math.ceil(lines / 5)) {
    parts.push(`<text x="42" y="${y(i * step) + 4}" text-anchor="end">${i * step}</text>`,
      `<line x1="48" x2="628" y1="${y(i * step)}" y2="${y(i * step)}" stroke="currentColor" opacity=".15"/>`);
  }
  parts.push(`<text x="48" y="12">${shell.text('micro')}</text>`);
  curves.forEach((curve, i) => parts.push(`<polyline class="${['one', 'other'][i]}" fill="none" stroke="currentColor"
    stroke-width="2" points="${curve.map(([position, time]) => `${x(position).toFixed(1)},${y(time).toFixed(1)}`).join(' ')}"/>`));
  at('curve').innerHTML = parts.join('');
  plotted = performance.now();
}

// Shows how many pixels of a lane are drawn.
function report(lane) {
  const lap = laps[lane].at(-1);
  at(`pixel-${lane}`).textContent = lap ? shell.filled('of', {n: lap[0]}) : '–';
}

async function run(lane, seed, signal) {
  const pixels = new Uint8Array(PIXELS);
  let drawn = 0, memory = 0;
  await studio.run('race', {...studio.models[lane], seed}, {signal, handle(_, data) {
    pixels.set(data.bytes, drawn);
    drawn = data.position;
    memory = data.usedBytes;
    laps[lane].push([data.position, data.microseconds]);
    studio.paint(at(`sheet-${lane}`), pixels);
    at(`time-${lane}`).textContent = `${Math.round(smooth(lane).at(-1)[1])} µs`;
    at(`memory-${lane}`).textContent = studio.bytes(memory);
    report(lane);
    if (performance.now() - plotted > 150) plot();  // plot() takes longer than the time between two messages
  }});
  return memory;
}

at('go').addEventListener('click', () => studio.work(async signal => {
  for (const lane of LANES) await studio.run('warm', studio.models[lane], {signal});
  laps = {gated: [], softmax: []};
  const seed = studio.seed();
  const [one, other] = await Promise.all(LANES.map(lane => run(lane, seed, signal)));
  plot();
  const [fast, slow] = LANES.map(lane => smooth(lane).at(-1)[1]);
  return ['done', {times: (slow / fast).toFixed(1), memory: Math.round(other / one)}];
}));
document.addEventListener('language', () => {
  LANES.forEach(report);
  if (laps.gated.length > 0) plot();
});
LANES.forEach(lane => studio.paint(at(`sheet-${lane}`), new Uint8Array(PIXELS)));
