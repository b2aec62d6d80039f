// The official Anthropic client against a running cluster: shapes, order of events, usage and errors of
// Messages. Settings: BASE_URL. The last line is "N passed, N failed".
import assert from 'node:assert/strict';
import Anthropic, { APIError } from '@anthropic-ai/sdk';
import { run } from './client_tests.mjs';

const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: 'none', maxRetries: 0 });
const reasons = ['end_turn', 'max_tokens', 'tool_use'];
const ask = (content) => [{ role: 'user', content }];
const tests = {};
const { id: model } = (await client.models.list()).data[0];

const checkUsage = (usage) => {
  assert.ok(usage.input_tokens > 0 && usage.output_tokens >= 0);
  assert.equal(usage.cache_read_input_tokens, 0);
  assert.equal(usage.cache_creation_input_tokens, 0);
};

tests['models are listed and found'] = async () => {
  const found = await client.models.retrieve(model);
  assert.equal(found.type, 'model');
  assert.equal(found.display_name, model);
  assert.ok(!Number.isNaN(Date.parse(found.created_at)));
};

tests['an answer has its shape, usage and request id'] = async () => {
  const { data, request_id } = await client.messages.create({ model, max_tokens: 64, system: 'Be brief.', messages: ask('Say hello.') }).withResponse();
  assert.ok(request_id && data.id.endsWith(request_id));
  assert.equal(data.type, 'message');
  assert.ok(reasons.includes(data.stop_reason));
  checkUsage(data.usage);
};

tests['a stream is in order and counts as count_tokens does'] = async () => {
  const request = { model, messages: ask('Say hello.') };
  const { input_tokens } = await client.messages.countTokens(request);
  const types = [];
  let usage;
  for await (const event of await client.messages.create({ ...request, max_tokens: 32, stream: true })) {
    if (types.at(-1) !== event.type) types.push(event.type);
    if (event.type === 'message_start') assert.equal(event.message.usage.input_tokens, input_tokens);
    if (event.type === 'message_delta') ({ usage } = event);
  }
  assert.equal(types[0], 'message_start');
  assert.deepEqual(types.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
  assert.equal(usage.input_tokens, input_tokens);
  checkUsage(usage);
};

tests['the stream helper equals the whole answer'] = async () => {
  const request = { model, max_tokens: 48, temperature: 0, messages: ask('Hello! Who are you?') };
  const whole = await client.messages.create(request);
  const streamed = await client.messages.stream(request).finalMessage();
  assert.equal(streamed.stop_reason, whole.stop_reason);
  const texts = ({ content }) => content.filter((block) => block.text || block.thinking).map((block) => block.text ?? block.thinking);
  assert.deepEqual(texts(streamed), texts(whole));
};

tests['a forced call and its result'] = async () => {
  const tools = [{ name: 'get_weather', description: 'The weather of a city.', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }];
  const answer = await client.messages.create({ model, max_tokens: 200, temperature: 0, tools, tool_choice: { type: 'any' }, messages: ask('What is the weather in Paris?') });
  assert.equal(answer.stop_reason === 'tool_use', answer.content.some((block) => block.type === 'tool_use') && answer.stop_reason !== 'max_tokens');
  const call = { type: 'tool_use', id: 'toolu_1', name: 'get_weather', input: { city: 'Paris' } };
  const result = { type: 'tool_result', tool_use_id: 'toolu_1', content: [{ type: 'text', text: '18 degrees' }] };
  const next = await client.messages.create({ model, max_tokens: 16, tools, messages: [...ask('Weather?'), { role: 'assistant', content: [call] }, { role: 'user', content: [result] }] });
  assert.ok(reasons.includes(next.stop_reason));
};

tests['errors become API errors of their type'] = async () => {
  const source = { type: 'url', url: 'https://host.example/picture.png' };
  for (const [change, status, type] of [
    [{ messages: [] }, 400, 'invalid_request_error'],
    [{ model: 'no-such-model' }, 404, 'not_found_error'],
    [{ messages: ask([{ type: 'image', source }]) }, 400, 'invalid_request_error'],
  ]) {
    const error = await client.messages.create({ model, max_tokens: 4, messages: ask('Hi'), ...change }).then(() => assert.fail('no error'), (failure) => failure);
    assert.ok(error instanceof APIError, String(error));
    assert.equal(error.status, status);
    assert.equal(error.error.error.type, type);
    assert.equal(error.requestID, error.error.request_id);
  }
};

await run(tests);
