// Tests OpenAI's own client against /v1/completions and /v1/chat/completions.
//
//   node tests/page/openai_test.mjs BIN_DIR
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';

import { assert, load, run, serve } from './common.mjs';

const { module: { OpenAI } } = load('openai');
const folder = mkdtempSync(path.join(os.tmpdir(), 'linnet_openai_test.'));
writeFileSync(path.join(folder, 'words.txt'), 'the quick brown fox jumps over the lazy dog. '.repeat(400));
execFileSync(path.join(process.argv[2], 'linnet'), ['train', 'text', '--data', path.join(folder, 'words.txt'),
  '--layers', '2', '--heads', '2', '--d-model', '32', '--context', '1024', '--batch', '2', '--lr', '1e-2', '--steps',
  '250', '--validate-every', '0', '--threads', '1', '--out', path.join(folder, 'run')], { stdio: 'pipe' });
const model = 'run';  // named after the run's folder
const server = await serve(process.argv[2], [path.join(folder, 'run', 'model.safetensors')], '--chat', 'plain');
const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
const request = { model, prompt: 'ROMEO:', max_tokens: 40, seed: 5, temperature: 0.8 };

await run({
  'models are listed': async () => {
    assert.deepEqual((await client.models.list()).data.map(({ id }) => id), [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
    await assert.rejects(client.models.retrieve('none'), OpenAI.NotFoundError);
  },
  'a completion': async () => {
    const result = await client.completions.create(request);
    assert.equal(result.choices.length, 1);
    assert.equal(result.choices[0].finish_reason, 'length');
    assert.equal(result.usage.completion_tokens, 40);
    assert.deepEqual((await client.completions.create(request)).choices, result.choices);
  },
  'a stream has the texts of the whole answer': async () => {
    const whole = await client.completions.create({ ...request, n: 2 });
    const texts = ['', ''];
    const ends = [];
    for await (const { choices } of await client.completions.create({ ...request, n: 2, stream: true })) {
      for (const { index, text, finish_reason: end } of choices) {
        texts[index] += text;
        if (end) ends.push(end);
      }
    }
    assert.deepEqual(texts, whole.choices.map(({ text }) => text));
    assert.deepEqual(ends, ['length', 'length']);
  },
  'a chat, whole and as a stream': async () => {
    const chat = {
      model, max_tokens: 30, seed: 5, n: 2,
      messages: [{ role: 'system', content: 'the' }, { role: 'user', content: 'quick brown' }],
    };
    const whole = await client.chat.completions.create(chat);
    assert.equal(whole.object, 'chat.completion');
    assert.deepEqual(whole.choices.map(({ message }) => message.role), ['assistant', 'assistant']);
    assert.equal(whole.usage.prompt_tokens, 'system: the\nuser: quick brown\nassistant:'.length);
    const texts = ['', ''];
    const roles = [];
    const ends = [];
    for await (const { choices } of await client.chat.completions.create({ ...chat, stream: true })) {
      for (const { index, delta, finish_reason: end } of choices) {
        texts[index] += delta.content ?? '';
        if (delta.role) roles.push(delta.role);
        if (end) ends.push(end);
      }
    }
    assert.deepEqual(texts, whole.choices.map(({ message }) => message.content));
    assert.deepEqual(roles, ['assistant', 'assistant']);
    assert.deepEqual(ends, ['length', 'length']);
    await assert.rejects(client.chat.completions.create({ ...chat, tools: [] }), OpenAI.BadRequestError);
    await assert.rejects(client.chat.completions.create({ ...chat, messages: [] }), OpenAI.BadRequestError);
  },
  'structured output': async () => {
    const schema = {
      type: 'object', required: ['b', 'a'], additionalProperties: false,
      properties: { b: { type: 'integer', minimum: 1, maximum: 9 }, a: { enum: ['x', 'y'] } },
    };
    const { choices: [{ message, finish_reason: end }] } = await client.chat.completions.create({
      model, seed: 1, messages: [{ role: 'user', content: 'quick' }],
      response_format: { type: 'json_schema', json_schema: { name: 'pair', strict: true, schema } },
    });
    assert.match(message.content, /^\{"b": ?[1-9], ?"a": ?"[xy]"\}$/);
    assert.equal(end, 'stop');
  },
  'responses that continue each other, whole and as a stream': async () => {
    const settings = { model, max_output_tokens: 30, seed: 5 };
    const first = await client.responses.create({ ...settings, input: 'quick brown' });
    assert.equal(first.status, 'incomplete');
    assert.equal(first.incomplete_details.reason, 'max_output_tokens');
    const next = { ...settings, input: 'fox', previous_response_id: first.id };
    const second = await client.responses.create(next);
    const chat = await client.chat.completions.create({
      model, max_tokens: 30, seed: 5,
      messages: [{ role: 'user', content: 'quick brown' }, { role: 'assistant', content: first.output_text },
        { role: 'user', content: 'fox' }],
    });
    assert.equal(second.output_text, chat.choices[0].message.content);
    let text = '';
    for await (const event of await client.responses.create({ ...next, stream: true })) {
      if (event.type === 'response.output_text.delta') text += event.delta;
    }
    assert.equal(text, second.output_text);
    const final = await client.responses.stream(next).finalResponse();
    assert.equal(final.output_text, second.output_text);
    assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
    await client.responses.delete(first.id);
    await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
    await assert.rejects(client.responses.create(next), OpenAI.NotFoundError);
  },
  'several prompts, and tokens': async () => {
    const alone = [];
    for (const prompt of ['ROMEO:', 'the']) alone.push(await client.completions.create({ ...request, prompt, n: 2 }));
    const want = alone.flatMap(({ choices }) => choices.map(({ text }) => text));
    const tokens = ['ROMEO:', 'the'].map((text) => [...Buffer.from(text)].map((byte) => byte + 3));
    for (const prompt of [['ROMEO:', 'the'], tokens]) {
      const { choices, usage } = await client.completions.create({ ...request, prompt, n: 2 });
      assert.deepEqual(choices.map(({ index }) => index), [0, 1, 2, 3]);
      assert.deepEqual(choices.map(({ text }) => text), want);
      assert.equal(usage.prompt_tokens, 9);
      const texts = ['', '', '', ''];
      for await (const chunk of await client.completions.create({ ...request, prompt, n: 2, stream: true })) {
        for (const { index, text } of chunk.choices) texts[index] += text;
      }
      assert.deepEqual(texts, want);
    }
  },
  'logprobs, whole and streamed': async () => {
    const cold = { ...request, logprobs: 2, temperature: 0.3 };  // low enough that the text is ASCII
    const { choices: [{ text, logprobs }] } = await client.completions.create(cold);
    assert.equal(logprobs.tokens.join(''), text);
    assert.equal(logprobs.tokens.length, 40);
    logprobs.tokens.forEach((token, i) => {
      assert.equal(logprobs.top_logprobs[i][token], logprobs.token_logprobs[i]);
      assert.equal(logprobs.text_offset[i], i);
    });
    const tokens = [];
    for await (const { choices } of await client.completions.create({ ...cold, stream: true })) {
      tokens.push(...choices[0].logprobs.tokens);
    }
    assert.deepEqual(tokens, logprobs.tokens);
  },
  'a client may leave a stream in the middle': async () => {
    const stream = await client.completions.create({ ...request, max_tokens: 900, stream: true });
    for await (const chunk of stream) {
      assert.ok(chunk.choices.length > 0);
      stream.controller.abort();
      break;
    }
    assert.equal((await client.completions.create(request)).choices.length, 1);
  },
  'errors arrive as the types of the client': async () => {
    await assert.rejects(client.completions.create({ ...request, temperature: -1 }), OpenAI.BadRequestError);
    await assert.rejects(client.completions.create({ ...request, model: 'none' }), OpenAI.NotFoundError);
  },
}, async () => {
  server.stop();
  rmSync(folder, { recursive: true });
});
