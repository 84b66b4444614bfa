// What the official OpenAI client for Node sees of this program, as JSON on standard output.
import OpenAI from 'openai';

const client = new OpenAI({ maxRetries: 1 });
const messages = [{ role: 'user', content: 'How much?' }];

// How a request fails, as the client tells it.
async function refusal(ask) {
  try {
    await ask();
  } catch (error) {
    return [error.constructor.name, error.status, error.code].filter((part) => part != null);
  }
  return 'not refused';
}

async function completion() {
  const answer = await client.chat.completions.create({ model: 'bank', messages });
  const [choice] = answer.choices;
  return [choice.message.content, choice.finish_reason, answer.usage.total_tokens];
}

async function streamedCompletion() {
  const stream = await client.chat.completions.create({ model: 'bank', messages, stream: true });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
  return text;
}

const seen = {
  models: (await client.models.list()).data.map((model) => model.id),
  completion: await completion(),
  'streamed completion': await streamedCompletion(),
};
const response = await client.responses.create({ model: 'bank', input: 'How much?' });
seen.response = [response.output_text, response.status, response.usage.total_tokens];
const stream = client.responses.stream({ model: 'bank', input: 'And how?' });
let text = '';
stream.on('response.output_text.delta', (event) => (text += event.delta));
const final = await stream.finalResponse();
seen['streamed response'] = [text === final.output_text ? text : [text, final.output_text], final.status];
const continued = await client.responses.create({ model: 'bank', input: 'More?', previous_response_id: final.id });
seen.continued = { previous: continued.previous_response_id === final.id, text: continued.output_text };
seen.read = (await client.responses.retrieve(continued.id)).output_text;
await client.responses.delete(continued.id);
seen.deleted = (await refusal(() => client.responses.retrieve(continued.id))).slice(0, 2);
const made = await client.conversations.create({ agent: 'bank' });
await client.responses.create({ model: 'bank', input: 'And here?', conversation: made.id });
const items = [];
for await (const item of client.conversations.items.list(made.id, { limit: 1, order: 'asc' })) items.push(item);
seen.items = items.map((item) => [item.role, item.content[0].text]);
seen.item = (await client.conversations.items.retrieve(items[1].id, { conversation_id: made.id })).content[0].text;
seen['new item'] = await refusal(() => client.conversations.items.create(made.id, { items: [] }));
seen['deleted item'] = await refusal(() =>
  client.conversations.items.delete(items[0].id, { conversation_id: made.id }));
seen['no such model'] = await refusal(() => client.responses.create({ model: 'gpt-4o', input: 'hi' }));
seen['wrong key'] = await refusal(() => new OpenAI({ apiKey: 'wrong' }).responses.create({ model: 'bank', input: 'hi' }));
seen['no such response'] = await refusal(() =>
  client.responses.create({ model: 'bank', input: 'hi', previous_response_id: continued.id }));
seen['failed run'] = await refusal(() => client.responses.create({ model: 'bank', input: 'hi' }));
seen['failed stream'] = (await client.responses.stream({ model: 'bank', input: 'hi' }).finalResponse()).status;
console.log(JSON.stringify(seen));
