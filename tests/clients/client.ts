// A chat and a file, by the types of openapi-typescript, and by the client of @hey-api/openapi-ts.
import createClient from 'openapi-fetch';
import type { components, paths } from './types.js';
import { createAttachment, createConversation, listMessages, postMessage } from './hey/sdk.gen.js';
import { client as hey } from './hey/client.gen.js';

const [baseUrl, token] = process.argv.slice(2) as [string, string];
const headers = { Authorization: `Bearer ${token}` };
const file = new Blob(['Some notes.'], { type: 'text/plain' });

function must<T>(answer: { data?: T; error?: unknown }): NonNullable<T> {
  if (answer.data == null) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

/** Each kind of part has its own members: this does not compile for a union that is not one. */
function textOf(part: components['schemas']['Part']): string {
  switch (part.type) {
    case 'text':
      return part.text;
    case 'attachment':
      return part.name;
    default:
      return '';
  }
}

const api = createClient<paths>({ baseUrl, headers });
const chat = must(await api.POST('/v1/conversations', { body: { agent: 'bank' } }));
const path = { id: chat.id };
const kept = must(await api.POST('/v1/conversations/{id}/attachments', {
  params: { path, query: { name: 'notes.txt' } },
  headers: { 'Content-Type': 'application/octet-stream' },
  // Of a binary string a generator of types knows no more than that it is one.
  body: file as unknown as string,
  bodySerializer: (body) => body as unknown as Blob,
}));
must(await api.POST('/v1/conversations/{id}/messages', {
  params: { path }, body: { text: 'What is it?', attachments: [kept.id] },
}));
const page = must(await api.GET('/v1/conversations/{id}/messages', { params: { path, query: { after: 0 } } }));
const texts = page.items.flatMap((message) => message.parts.map(textOf));
if (!texts.includes('What is it?') || !texts.includes('notes.txt')) throw new Error(texts.join());

hey.setConfig({ baseUrl, headers });
const second = must(await createConversation({ body: { agent: 'bank' } }));
const again = must(await createAttachment({ path: { id: second.id }, query: { name: 'notes.txt' }, body: { file } }));
if (again.size !== 11) throw new Error(`a file of ${again.size} bytes`);
must(await postMessage({ path: { id: second.id }, body: { text: 'What is it?', attachments: [again.id] } }));
const heard = must(await listMessages({ path: { id: second.id }, query: { after: 0 } }));
if (!heard.items.flatMap((message) => message.parts.map(textOf)).includes('notes.txt')) throw new Error('no file');
console.log('typescript: a message and a file, twice');
