// The page of speech: a network hears phones in sound from a microphone or a file, as it arrives.
'use strict';
const at = id => document.getElementById(id);
const RATE = 16000, FRAMES = 100;  // samples and filterbank frames per second
const WIDTH = at('bands').width, BANDS = at('bands').height;  // a column of the picture is a frame

studio.begin({
  zh: {
    title: '语音 · linnet', heading: '网络听音素',
    lead: '对着麦克风说英语，或选一段录音：网络边听边写下音素。它只听过一个小时的英语字母、数字和姓名，所以听这些最准。',
    record: '用麦克风', choose: '选一段录音', stop: '停', bands: '声音的频谱：横轴是时间，纵轴是音高', phones: '听到的音素',
    length: '已听', speed: '速度', memory: '记忆', asking: '请允许使用麦克风……', listening: '正在听，请说英语字母或数字……', working: '正在听录音……', stopped: '停了。',
    done: '听完了：{count} 个音素。', silent: '没有听到音素。', times: '比实时快 {times} 倍', seconds: '{seconds} 秒',
    denied: '不能使用麦克风：请在浏览器里允许，或选一段录音。', none: '没有找到麦克风，请选一段录音。',
    rate: '这个浏览器不能以 16 kHz 录音（或没有加载 microphone.js），请选一段录音。', unreadable: '浏览器读不懂 {name}：请选 WAV、MP3、FLAC 或 Ogg 文件。',
    explain: '图中是网络的输入：40 个频带的能量，每 10 毫秒一列。网络是因果的线性注意力：每 30 毫秒读一次，状态大小不变，' +
      '听一秒和听一小时用的记忆一样多。音素写法是 ARPAbet：AY 是 “five” 的元音，IY 是 “three” 的元音。声音不离开这台机器。',
  },
  en: {
    title: 'Speech · linnet', heading: 'A network hears phones',
    lead: 'Speak English into a microphone, or choose a recording: the network writes down the phones as it hears them. ' +
      'It has heard an hour of English letters, numbers and names, and knows these best.',
    record: 'Microphone', choose: 'Choose a recording', stop: 'Stop',
    bands: 'The spectrum of the sound: time from left to right, pitch from bottom to top', phones: 'Phones heard',
    length: 'Heard', speed: 'Speed', memory: 'Memory', asking: 'Allow the microphone …', listening: 'Listening. Say letters or numbers …',
    working: 'Listening to the recording …', stopped: 'Stopped.', done: 'The recording has {count} phones.',
    silent: 'No phones were heard.', times: '{times} times real time', seconds: '{seconds} s',
    denied: 'The microphone is blocked: allow it in the browser, or choose a recording.',
    none: 'No microphone was found; choose a recording.',
    rate: 'This browser cannot record at 16 kHz, or microphone.js was not loaded; choose a recording.',
    unreadable: 'The browser cannot read {name}; choose a WAV, MP3, FLAC or Ogg file.',
    explain: 'The picture shows what the network reads: the energy in 40 bands, a column every 10 ms. The network has ' +
      'causal linear attention. It reads every 30 ms into a state of constant size: an hour takes no more memory than ' +
      'a second. Phones are written in ARPAbet: AY is the vowel of "five", IY that of "three". The sound stays on this ' +
      'machine.',
  },
});

// What the page shows of the sound: the last WIDTH frames, and the phones.
// `waiting` holds frames and `words` elements that the next frame of the display adds.
const sound = {frames: 0, phones: [], seconds: 0, busy: 0, stateBytes: 0, waiting: [], words: []};

function clear() {
  Object.assign(sound, {frames: 0, phones: [], seconds: 0, busy: 0, waiting: [], words: []});
  const context = at('bands').getContext('2d');
  context.fillStyle = '#fff';
  context.fillRect(0, 0, WIDTH, BANDS);
  at('marks').replaceChildren();
  at('phones').replaceChildren();
  report();
}

// Moves the picture to the left and adds frames [count, BANDS]: louder is darker.
function addFrames(frames) {
  const count = Math.min(WIDTH, frames.length / BANDS);
  if (count === 0) return;
  const canvas = at('bands'), context = canvas.getContext('2d');
  const first = frames.length / BANDS - count, image = context.createImageData(count, BANDS);
  const pixels = new Uint32Array(image.data.buffer);
  for (let column = 0; column < count; ++column) {
    for (let band = 0; band < BANDS; ++band) {
      const shade = 255 - 255 * Math.min(1, Math.max(0, (frames[(first + column) * BANDS + band] - 8) / 16));
      pixels[(BANDS - 1 - band) * count + column] = 0xff000000 + 0x010101 * Math.round(shade);  // opaque gray
    }
  }
  context.drawImage(canvas, -count, 0);
  context.putImageData(image, WIDTH - count, 0);
  sound.frames += frames.length / BANDS;
}

// Shows the phones that are in the picture below their beginnings, in two rows. A phone without room in both is left out.
function mark() {
  const begin = sound.frames - WIDTH, room = 5;  // percent of the width
  const ends = [0, 0];  // of the last label in each row
  const labels = [];
  for (const {name, seconds} of sound.phones.slice(-WIDTH)) {
    const left = 100 * (seconds * FRAMES - begin) / WIDTH, row = ends.findIndex(end => end <= left);
    if (left < 0 || row < 0) continue;
    ends[row] = left + room;
    const label = document.createElement('span');
    label.textContent = name;
    label.style.left = `${left}%`;
    label.className = ['', 'lower'][row];
    labels.push(label);
  }
  at('marks').replaceChildren(...labels);
}

function report() {
  const heard = sound.seconds > 0;
  at('length').textContent = heard ? shell.filled('seconds', {seconds: sound.seconds.toFixed(1)}) : '–';
  at('speed').textContent = sound.busy > 0 ? shell.filled('times', {times: Math.round(sound.seconds / sound.busy)}) : '–';
  at('memory').textContent = heard ? studio.bytes(sound.stateBytes) : '–';
}

// The picture is drawn once a frame of the display, however many messages the worker sends.
let due = 0;
function show({frames, phones, ...facts}) {
  Object.assign(sound, facts);
  sound.waiting.push(frames);
  for (const phone of phones) {
    sound.phones.push(phone);
    const word = document.createElement('span');
    word.textContent = `${phone.name} `;
    word.title = `${shell.filled('seconds', {seconds: phone.seconds.toFixed(2)})}, ${Math.round(100 * phone.probability)} %`;
    sound.words.push(word);
  }
  if (document.hidden) draw();  // a hidden page gets no animation frames
  else due ||= requestAnimationFrame(draw);
}

function draw() {
  cancelAnimationFrame(due);
  due = 0;
  for (const more of sound.waiting.splice(0)) addFrames(more);
  const list = at('phones'), follows = list.scrollTop + list.clientHeight >= list.scrollHeight - 4;
  list.append(...sound.words.splice(0));
  if (follows) list.scrollTop = list.scrollHeight;  // unless the visitor has scrolled up
  mark();
  report();
}

// Shows the rest of the sound. Returns the message at the end: ['done' or 'silent', values].
function ending() {
  draw();
  return [sound.phones.length > 0 ? 'done' : 'silent', {count: sound.phones.length}];
}

// An error whose text is shell.words[language][key].
class Trouble extends Error {
  constructor(key, values = {}) {
    super(key);
    this.words = [key, values];
  }
}

// Runs body(signal) as the page's work with the message `doing`, and shows a Trouble in the visitor's language.
const work = (body, doing) => studio.work(async signal => {
  clear();
  try {
    return await body(signal);
  } catch (error) {
    if (error instanceof Trouble) return error.words;
    throw error;
  }
}, doing);

async function samplesOf(file) {
  try {
    const decoder = new OfflineAudioContext(1, 1, RATE);  // decodes to RATE
    const audio = await decoder.decodeAudioData(await file.arrayBuffer());
    const samples = audio.getChannelData(0), channels = audio.numberOfChannels;
    for (let channel = 1; channel < channels; ++channel) {
      const other = audio.getChannelData(channel);
      for (let i = 0; i < samples.length; ++i) samples[i] += other[i];
    }
    return channels > 1 ? samples.map(x => x / channels) : samples;
  } catch {
    throw new Trouble('unreadable', {name: file.name});
  }
}

at('choose').addEventListener('click', () => at('file').click());
at('file').addEventListener('change', () => {
  const [file] = at('file').files;
  at('file').value = '';  // the same file may be chosen again
  if (file) {
    work(async signal => {
      const samples = await samplesOf(file);
      await studio.run('listen', {...studio.models.phones, samples}, {signal, handle: (_, data) => show(data)});
      return ending();
    });
  }
});

// Opens the microphone at RATE. Returns {context, stream, node}: microphone.js runs in the node.
async function openMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia) throw new Trouble('none');
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({audio: {channelCount: 1, echoCancellation: false}});
  } catch (error) {
    throw new Trouble(error.name === 'NotAllowedError' ? 'denied' : 'none');
  }
  let context = null;
  try {
    context = new AudioContext({sampleRate: RATE});
    await context.audioWorklet.addModule('microphone.js');
    await context.resume();
    const node = new AudioWorkletNode(context, 'microphone', {numberOfOutputs: 0});
    context.createMediaStreamSource(stream).connect(node);
    return {context, stream, node};
  } catch {
    stream.getTracks().forEach(track => track.stop());
    context?.close();
    throw new Trouble('rate');
  }
}

at('record').addEventListener('click', () => work(async signal => {
  const {context, stream, node} = await openMicrophone();
  try {
    if (signal.aborted) throw signal.reason;
    studio.does(['listening']);
    // The sound goes from the audio thread to the worker, past this one.
    const {port1, port2} = new MessageChannel();
    node.port.postMessage(port1, [port1]);
    await studio.run('listen', {...studio.models.phones, port: port2},
      {signal, transfer: [port2], handle: (_, data) => show(data)});
    return ending();
  } finally {
    stream.getTracks().forEach(track => track.stop());
    await context.close();
  }
}, ['asking']));

document.addEventListener('language', report);
clear();
