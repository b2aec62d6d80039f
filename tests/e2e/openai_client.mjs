// The official OpenAI client against a running cluster: shapes, order of events, usage and errors of Chat
// Completions. Settings: BASE_URL. The last line is "N passed, N failed".
import assert from 'node:assert/strict';
import OpenAI, { APIError } from 'openai';
import { run } from './client_tests.mjs';

const base = process.env.BASE_URL;
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: 'none', maxRetries: 0 });
const reasons = ['stop', 'length'];
const ask = (content) => [{ role: 'user', content }];
const tests = {};
let model;

const checkUsage = (usage) => {
  assert.ok(Number.isInteger(usage.prompt_tokens) && usage.prompt_tokens > 0);
  assert.ok(Number.isInteger(usage.completion_tokens) && usage.completion_tokens >= 0);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
};

tests['models are listed'] = async () => {
  const { data } = await client.models.list();
  assert.equal(data.length, 1);
  assert.equal(data[0].object, 'model');
  assert.ok(data[0].id);
};

tests['an answer has its shape and usage'] = async () => {
  const answer = await client.chat.completions.create({ model, messages: [{ role: 'system', content: 'Be brief.' }, ...ask('Say hello.')], max_tokens: 64, temperature: 0 });
  assert.equal(answer.object, 'chat.completion');
  assert.ok(answer.id && Number.isInteger(answer.created));
  assert.equal(answer.model, model);
  const [choice] = answer.choices;
  assert.equal(choice.index, 0);
  assert.equal(choice.message.role, 'assistant');
  assert.ok(reasons.includes(choice.finish_reason));
  checkUsage(answer.usage);
};

tests['several choices are answered apart and streamed by index'] = async () => {
  const request = { model, messages: ask('Say hello.'), max_tokens: 16, n: 3, temperature: 1, seed: 7 };
  const answer = await client.chat.completions.create(request);
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
  const { choices, usage } = await client.chat.completions.stream({ ...request, stream_options: { include_usage: true } }).finalChatCompletion();
  assert.deepEqual(choices.map(({ message }) => message.content), answer.choices.map(({ message }) => message.content));
  assert.equal(usage.completion_tokens, answer.usage.completion_tokens);
  assert.equal(usage.prompt_tokens_details.cached_tokens, 0);
};

tests['log probabilities come with the answer'] = async () => {
  const answer = await client.chat.completions.create({ model, messages: ask('Say hello.'), max_tokens: 8, thinking: { type: 'disabled' }, logprobs: true, top_logprobs: 2 });
  const { content } = answer.choices[0].logprobs;
  assert.ok(content.length > 0);
  for (const entry of content) {
    assert.ok(entry.logprob <= 0 && entry.bytes.length > 0 && entry.top_logprobs.length === 2);
    assert.equal(Buffer.from(entry.bytes).toString(), entry.token);
  }
};

tests['content parts and the developer role are taken'] = async () => {
  const parts = [{ type: 'text', text: 'Say ' }, { type: 'text', text: 'hi.' }];
  const answer = await client.chat.completions.create({ model, max_completion_tokens: 16, messages: [{ role: 'developer', content: 'Be brief.' }, { role: 'user', content: parts }] });
  assert.ok(reasons.includes(answer.choices[0].finish_reason));
};

tests['the token limit ends an answer'] = async () => {
  const answer = await client.chat.completions.create({ model, messages: ask('Tell me a long story.'), max_tokens: 2 });
  assert.ok(answer.usage.completion_tokens <= 2);
  if (answer.usage.completion_tokens === 2) assert.equal(answer.choices[0].finish_reason, 'length');
};

tests['a stop string is not part of the answer'] = async () => {
  const answer = await client.chat.completions.create({ model, messages: ask('Hello! Who are you?'), max_tokens: 128, temperature: 0, stop: ['a'] });
  assert.ok(!(answer.choices[0].message.content ?? '').includes('a'));
};

tests['a stream is in order and ends with usage'] = async () => {
  const stream = await client.chat.completions.create({ model, messages: ask('Say hello.'), max_tokens: 64, stream: true, stream_options: { include_usage: true } });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  const finished = chunks.filter((c) => c.choices[0]?.finish_reason);
  assert.equal(finished.length, 1);
  const last = chunks.at(-1);
  assert.equal(last.choices.length, 0);
  checkUsage(last.usage);
  assert.equal(chunks.indexOf(finished[0]), chunks.length - 2);
  assert.ok(chunks.every((c) => !(c.choices[0]?.delta.content ?? '').includes('\ufffd')));
};

tests['streamed and whole answers are equal'] = async () => {
  const request = { model, messages: ask('Hello! Who are you?'), max_tokens: 100, temperature: 0 };
  const whole = (await client.chat.completions.create(request)).choices[0].message;
  let content = '', reasoning = '';
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    content += chunk.choices[0].delta.content ?? '';
    reasoning += chunk.choices[0].delta.reasoning_content ?? '';
  }
  assert.equal(content, whole.content ?? '');
  assert.equal(reasoning, whole.reasoning_content ?? '');
};

const weather = { type: 'function', function: { name: 'get_weather', description: 'The weather of a city.', strict: true, parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false } } };

// What a model calls is its own affair; what is reported as a call must be one.
const checkCalls = ({ message, finish_reason }) => {
  const calls = message.tool_calls ?? [];
  assert.equal(finish_reason === 'tool_calls', calls.length > 0 && finish_reason !== 'length');
  for (const call of calls) {
    assert.ok(call.id && call.type === 'function' && call.function.name);
    assert.equal(typeof JSON.parse(call.function.arguments), 'object');
  }
  assert.equal(new Set(calls.map((c) => c.id)).size, calls.length);
};

tests['tools, choices and results are taken'] = async () => {
  const request = { model, messages: ask('What is the weather in Paris?'), tools: [weather], max_tokens: 200, temperature: 0 };
  for (const tool_choice of ['auto', 'required', { type: 'function', function: { name: 'get_weather' } }]) {
    const answer = await client.chat.completions.create({ ...request, tool_choice });
    checkCalls(answer.choices[0]);
  }
  const none = await client.chat.completions.create({ ...request, tool_choice: 'none' });
  assert.equal(none.choices[0].message.tool_calls, undefined);
  const call = { id: 'call_1', type: 'function', function: { name: 'get_weather', arguments: '{"city": "Paris"}' } };
  const result = await client.chat.completions.create({ ...request, messages: [...request.messages, { role: 'assistant', content: null, tool_calls: [call] }, { role: 'tool', tool_call_id: 'call_1', content: '18 degrees' }] });
  checkCalls(result.choices[0]);
};

tests['a streamed call equals the whole one'] = async () => {
  const request = { model, messages: ask('What is the weather in Paris?'), tools: [weather], tool_choice: 'required', max_tokens: 200, temperature: 0 };
  const whole = (await client.chat.completions.create(request)).choices[0];
  const calls = [];
  let reason;
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    for (const { index, id, function: piece } of chunk.choices[0].delta.tool_calls ?? []) {
      if (id) {
        assert.equal(index, calls.length);
        calls.push({ name: piece.name, arguments: '' });
      }
      calls[index].arguments += piece.arguments;
    }
    reason = chunk.choices[0].finish_reason ?? reason;
  }
  assert.equal(reason, whole.finish_reason);
  if (reason === 'tool_calls') assert.deepEqual(calls, whole.message.tool_calls.map((c) => ({ ...c.function })));
};

tests['raw events end with [DONE]'] = async () => {
  const answer = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model, messages: ask('Hi'), max_tokens: 4, stream: true }) });
  assert.equal(answer.status, 200);
  assert.match(answer.headers.get('content-type'), /^text\/event-stream/);
  const events = (await answer.text()).split('\n\n').filter(Boolean);
  assert.equal(events.at(-1), 'data: [DONE]');
  for (const event of events.slice(0, -1)) assert.equal(JSON.parse(event.slice('data: '.length)).object, 'chat.completion.chunk');
};

tests['the stream helper assembles an answer'] = async () => {
  const answer = await client.chat.completions.stream({ model, messages: ask('Say hello.'), max_tokens: 64 }).finalChatCompletion();
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.ok(reasons.includes(answer.choices[0].finish_reason));
};

tests['errors become API errors'] = async () => {
  const failure = (request) => client.chat.completions.create(request).then(() => assert.fail('no error'), (error) => error);
  for (const [request, status, param] of [
    [{ model, messages: [] }, 400, 'messages'],
    [{ model, messages: ask('Hi'), temperature: 9 }, 400, 'temperature'],
    [{ model: 'no-such-model', messages: ask('Hi') }, 404, 'model'],
    [{ model, messages: ask([{ type: 'image_url', image_url: { url: 'https://host.example/p.png' } }]) }, 400, 'messages[0].content[0].image_url.url'],
  ]) {
    const error = await failure(request);
    assert.ok(error instanceof APIError, String(error));
    assert.equal(error.status, status);
    assert.equal(error.param, param);
  }
};

tests['an aborted stream leaves the server usable'] = async () => {
  const stream = await client.chat.completions.create({ model, messages: ask('Tell me a story.'), max_tokens: 256, stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  const answer = await client.chat.completions.create({ model, messages: ask('Hi'), max_tokens: 2 });
  assert.equal(answer.choices.length, 1);
};

tests['many answers at once have ids of their own'] = async () => {
  const answers = await Promise.all([...Array(8).keys()].map((i) => client.chat.completions.create({ model, messages: ask(`Say ${i}.`), max_tokens: 8 })));
  assert.equal(new Set(answers.map((a) => a.id)).size, 8);
};

model = (await client.models.list()).data[0].id;
await run(tests);
