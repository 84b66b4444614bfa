// Leaves an answer after its first word and comes back to it, as a page that is loaded again does.
import { DefaultChatTransport, readUIMessageStream } from 'ai';

const transport = new DefaultChatTransport({
  api: `${process.env.URL}/v1/ui/chat`,
  headers: { Authorization: `Bearer ${process.env.TOKEN}` },
  body: { agent: 'bank' },
});
const messages = [{ id: 'u1', role: 'user', parts: [{ type: 'text', text: 'How much?' }] }];
const leave = new AbortController();
const request = { chatId: 'chat-1', trigger: 'submit-message', messages, abortSignal: leave.signal };
const reader = (await transport.sendMessages(request)).getReader();
while ((await reader.read()).value.type !== 'text-delta');
leave.abort();
const stream = await transport.reconnectToStream({ chatId: 'chat-1' });
let answer;
for await (const message of readUIMessageStream({ stream })) answer = message;
console.log(JSON.stringify(answer.parts.filter((part) => part.type === 'text').map((part) => part.text).join('')));
