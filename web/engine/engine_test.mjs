// Tests linnet.js and linnet.wasm against the native library, through its Python package:
//
//   node web/engine/engine_test.mjs WASM BIN_DIR LIBLINNET
import assert from 'node:assert/strict';
import {execFileSync} from 'node:child_process';
import {copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import path from 'node:path';
import test, {after} from 'node:test';
import {fileURLToPath} from 'node:url';

import {LinnetError, load} from './linnet.js';

const [wasm, bin, library] = process.argv.slice(2);
const source = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const dir = mkdtempSync(path.join(tmpdir(), 'linnet-web-'));
after(() => rmSync(dir, {recursive: true}));
const linnet = await load(readFileSync(wasm));

const model = name => path.join(source, 'models', `${name}.safetensors`);
const open = (name, precision = null) => linnet.open(readFileSync(model(name)), {precision, label: name});
const native = (...given) => JSON.parse(execFileSync(path.join(bin, 'linnet'), [...given, '--json'], {encoding: 'utf8'}));
const python = code => JSON.parse(execFileSync('/usr/bin/python3', ['-c', `import json, linnet\n${code}`], {
  encoding: 'utf8', env: {...process.env, PYTHONPATH: path.join(source, 'python'), LINNET_LIBRARY: library},
}));

// The largest difference, relative to the largest magnitude in b.
function off(a, b) {
  assert.equal(a.length, b.length);
  let difference = 0, most = 1e-30;
  for (let i = 0; i < a.length; ++i) {
    assert.ok(Number.isFinite(a[i]));
    difference = Math.max(difference, Math.abs(a[i] - b[i]));
    most = Math.max(most, Math.abs(b[i]));
  }
  return difference / most;
}

// Products in bf16 and int8 round activations. After a sum in another order, an activation may round to a neighboring
// value, a relative difference of about 1/256 (bf16) or 1/127 (int8).
const TOLERANCE = {f32: 1e-5, bf16: 1e-2, int8: 1e-2};
for (const [name, precisions] of Object.entries({
  'digits': ['f32', 'bf16', 'int8'], 'digits-gated-delta': ['f32', 'bf16'], 'digits-softmax': ['f32', 'int8'],
  'shakespeare': ['f32', 'int8'],
})) {
  for (const precision of precisions) {
    test(`${name} in ${precision}: steps and pieces give the native outputs`, () => {
      const net = open(name, precision), length = 60;
      const tokens = Int32Array.from({length}, (_, i) => 3 + (i * i * 7 + i) % 200);
      const want = python(`
model = linnet.Model(${JSON.stringify(model(name))}, precision="${precision}")
tokens, state = [${[...tokens]}], model.new_state()
print(json.dumps({"whole": model.new_state().read(tokens, every=True).ravel().tolist(),
                  "steps": [x for token in tokens for x in state.step([token]).ravel().tolist()]}))`);
      const whole = net.newState().read(tokens, {every: true});
      assert.ok(off(whole, want.whole) < TOLERANCE[precision], `whole: ${off(whole, want.whole)}`);
      const state = net.newState();
      const steps = Float32Array.from([...tokens].flatMap(token => [...state.step([token])]));
      assert.ok(off(steps, want.steps) < TOLERANCE[precision], `steps: ${off(steps, want.steps)}`);
      assert.equal(state.position(), length);
      net.free();
    });
  }
}

test('a model says what it is', () => {
  const net = open('digits');
  assert.deepEqual([net.task, net.precision, net.imageShape, net.imageBytes], ['images', 'f32', [28, 28, 1], 784]);
  assert.deepEqual([net.vocabulary, net.positions, net.stateKind, net.limited], [256, 783, 'constant', true]);
  assert.equal(net.parameters, 1834878);
  assert.equal(net.spec.d_model, 192);
  const state = net.newState(3);
  assert.equal(state.batch, 3);
  assert.equal(state.bytes, 3 * net.stateBytes);
  assert.match(linnet.version, /^\d+\.\d+\.\d+$/);
});

test('a digit is drawn byte by byte, as the whole image is', () => {
  const net = open('digits'), state = net.newState(), seed = 5;
  const [image] = [net.sample(1, {seed})];
  const bytes = [net.drawByte(null, 0, {seed})];
  let bits = 0;
  for (let p = 1; p < net.imageBytes; ++p) {
    const outputs = state.step([bytes[p - 1]]);
    bytes.push(net.drawByte(outputs, p, {seed}));
    bits += net.byteBits(outputs, bytes[p], p) / (net.imageBytes - 1);
  }
  assert.deepEqual(Uint8Array.from(bytes), image);
  assert.ok(Math.abs(bits - net.bitsPerDim(image)[0]) < 1e-3);
  assert.ok(bits < 2);
  const half = net.complete(image, 392, {seed: 6});
  assert.deepEqual(half.slice(0, 392), image.slice(0, 392));
  assert.notDeepEqual(half, image);
});

test('states are forked, selected, saved, and read by the native library', () => {
  const net = open('digits'), state = net.newState(), prefix = [0, 0, 10, 200, 30];
  state.read(prefix);
  const fork = state.fork(3);
  assert.deepEqual([fork.batch, fork.position(2)], [3, 5]);
  fork.step([1, 2, 3]);
  const second = fork.select([1]), again = state.copy();
  assert.deepEqual(second.step([7]), (again.step([2]), again.step([7])));
  again.reset();
  assert.equal(again.position(), 0);
  const loaded = net.loadState(state.save());
  assert.deepEqual(loaded.step([9]), state.step([9]));
});

test('text is that of the native program', () => {
  const net = open('shakespeare');
  const {text} = native('generate', model('shakespeare'), '--prompt', 'ROMEO:', '--temperature', '0', '-n', '120');
  const pieces = [];
  const own = net.generate('ROMEO:', {temperature: 0, maxTokens: 120, reader: piece => void pieces.push(piece)});
  assert.equal(own, pieces.join(''));
  assert.equal(own, text);
  for (const text of ['To be, or', '\ufeffé']) assert.equal(net.decode(net.encode(text)), text);
  assert.equal(new TextDecoder().decode(net.tokenBytes(net.encode('x')[0])), 'x');
  assert.equal(net.generate('ROMEO:', {reader: () => false}).length, 1);
  assert.equal(net.generate('O', {maxTokens: 400, seed: 2, stop: ['e']}).includes('e'), false);
});

test('couplets are those of the native program', () => {
  const net = open('couplet'), lines = net.couplets('海上明月', {candidates: 3});
  const want = native('couplet', model('couplet'), '海上明月', '--count', '3')[0].answers;
  assert.deepEqual(lines.map(({text}) => text), want.map(({text}) => text));
  assert.ok(off(lines[0].scores, want[0].scores) < 1e-2);
  assert.deepEqual([lines.unknown, net.couplets('QXQ').unknown], [[], ['Q', 'X']]);
});

// Two seconds of buzzes at changing pitches, with noise: without it, the energy of high bands would be rounding errors.
const SOUND = Float32Array.from({length: 32000}, (_, i) => {
  const t = i / 16000, pitch = 110 + 30 * Math.sin(3 * t);
  let sum = 0.02 * ((Math.imul(i + 1, 2654435761) >>> 8) / 2 ** 24 - 0.5);
  for (let k = 1; k < 30; ++k) sum += 0.05 * (k * pitch < 1200 ? 1 : 0.2) * Math.sin(2 * Math.PI * k * pitch * t);
  return sum * Math.abs(Math.sin(8 * t));
});

test('phones are those of the native library, whole and as a stream', () => {
  writeFileSync(path.join(dir, 'sound'), SOUND);
  const want = python(`
import numpy
sound = numpy.fromfile(${JSON.stringify(path.join(dir, 'sound'))}, numpy.float32)
causal = linnet.Model(${JSON.stringify(model('phones-causal'))}, precision="f32")
print(json.dumps({"frames": causal.frames(sound, 16000).ravel().tolist(), "stream": causal.transcribe(sound, 16000),
                  "whole": linnet.Model(${JSON.stringify(model('phones'))}, precision="f32").transcribe(sound, 16000, 8)}))`);
  const said = phones => phones.map(({name, seconds}) => [name, seconds]), expected = list => list.map(phone => phone.slice(0, 2));
  const causal = open('phones-causal', 'f32');
  assert.equal(causal.sampleRate, 16000);
  assert.ok(off(causal.frames(SOUND), want.frames) < 1e-5, String(off(causal.frames(SOUND), want.frames)));
  assert.ok(want.stream.length > 2);
  assert.deepEqual(said(causal.transcribe(SOUND)), expected(want.stream));
  assert.deepEqual(said(open('phones', 'f32').transcribe(SOUND, {beam: 8})), expected(want.whole));
  const stream = causal.transcriber(), heard = [];
  assert.ok(stream.delay > 0.1 && stream.delay < 0.3);
  for (let at = 0; at < SOUND.length; at += 1000) heard.push(...stream.feed(SOUND.subarray(at, at + 1000)));
  heard.push(...stream.finish());
  assert.deepEqual(said(heard), expected(want.stream));
  assert.throws(() => stream.feed(SOUND), LinnetError);
  stream.free();
});

test('many sequences fit the memory', () => {
  const net = open('digits-softmax');
  assert.equal(net.newState(64).batch, 64);
  net.free();
});

test('a choice follows its options', () => {
  const logits = [0, 3, 1, 2.9];
  assert.equal(linnet.choose(logits, 0, {temperature: 0}), 1);
  const drawn = Array.from({length: 50}, (_, i) => linnet.choose(logits, i, {seed: 3, topK: 2}));
  assert.deepEqual([...new Set(drawn)].sort(), [1, 3]);
});

test('failures have a kind and a message', () => {
  const net = open('digits'), fails = (kind, message, body) => assert.throws(body, error => {
    assert.ok(error instanceof LinnetError, String(error));
    assert.equal(error.kind, kind);
    assert.match(error.message, message);
    return true;
  });
  fails('input', /junk: /, () => linnet.open(new Uint8Array(100), {label: 'junk'}));
  fails('input', /int4/, () => open('digits', 'int4'));
  fails('input', /256/, () => net.newState().step([256]));
  fails('input', /4294967296 is not/, () => net.newState().step([2 ** 32]));
  fails('input', /1.5 is not/, () => net.sample(1.5));
  fails('input', /1.5 is not/, () => net.sample(1, {seed: 1.5}));
  fails('input', /300 is not/, () => net.byteBits(new Float32Array(net.outputs), 300, 1));
  fails('input', /whole number of images/, () => net.bitsPerDim(new Uint8Array(1600)));
  fails('input', /sequence/, () => net.newState().position(9));
  fails('input', /callback/, () => net.sample(1, {progress: () => net.free()}));
  fails('input', /2 tokens for 1 sequences/, () => net.newState().step([1, 2]));
  fails('input', /tokens for 2/, () => net.newState(2).read([1, 2, 3]));
  fails('input', /outputs/, () => net.drawByte(new Float32Array(3), 1));
  fails('input', /temperature/, () => net.sample(1, {temperature: 0}));
  fails('input', /not of images/, () => open('shakespeare').sample());
  fails('input', /speech/, () => net.transcriber());
  fails('input', /not causal/, () => open('phones').transcriber());
  fails('cancelled', /./, () => net.sample(2, {batch: 1, progress: () => false}));
  assert.throws(() => net.sample(1, {progress: () => { throw new TypeError('mine'); }}), TypeError);
  net.free();
  fails('input', /NULL/, () => net.newState());
});

test('the npm package has the files that it needs, and its README runs', () => {
  const site = path.dirname(wasm), package_ = path.join(dir, 'node_modules', 'linnet');
  mkdirSync(package_, {recursive: true});
  const {files, main, types} = JSON.parse(readFileSync(path.join(site, 'package.json'), 'utf8'));
  for (const name of [...files, 'package.json']) copyFileSync(path.join(site, name), path.join(package_, name));
  assert.ok([main, types, 'README.md'].every(name => files.includes(name)));
  copyFileSync(model('digits'), path.join(dir, 'digits.safetensors'));
  const [, example] = /```js\n([^]*?)```/.exec(readFileSync(path.join(site, 'README.md'), 'utf8'));
  writeFileSync(path.join(dir, 'example.mjs'), example);
  const byte = Number(execFileSync(process.execPath, ['example.mjs'], {cwd: dir, encoding: 'utf8'}));
  assert.ok(Number.isInteger(byte) && byte >= 0 && byte < 256);
});

test('memory is returned', () => {
  const net = open('digits'), pages = () => linnet.c.memory.buffer.byteLength;
  for (let i = 0; i < 5; ++i) net.newState(64).free();
  const before = pages();
  for (let i = 0; i < 200; ++i) net.newState(64).free();
  assert.equal(pages(), before);
});
