// What the AI SDK's default transport sees of this program, as JSON on standard output.
import { DefaultChatTransport, readUIMessageStream } from 'ai';

const transport = new DefaultChatTransport({
  api: `${process.env.URL}/v1/ui/chat`,
  headers: { Authorization: `Bearer ${process.env.TOKEN}` },
  body: { agent: 'bank' },
});
const messages = [];

// Says something in the chat; the answer as a message.
async function say(text, options = {}) {
  messages.push({ id: `u${messages.length}`, role: 'user', parts: [{ type: 'text', text }] });
  const request = { chatId: 'chat-1', trigger: 'submit-message', messages, ...options };
  const stream = await transport.sendMessages(request);
  let finish;
  const noted = stream.pipeThrough(new TransformStream({
    transform(chunk, controller) {
      if (chunk.type === 'finish') finish = chunk.finishReason;
      controller.enqueue(chunk);
    },
  }));
  let answer;
  for await (const message of readUIMessageStream({ stream: noted })) answer = message;
  messages.push(answer);
  return { answer, finish };
}

const shown = (part) => {
  if (part.type === 'text') return [part.type, part.text];
  if (part.type === 'dynamic-tool') {
    const last = part.state === 'approval-requested' ? part.approval.isAutomatic : part.input;
    return [part.type, part.toolName, part.state, part.providerExecuted, last];
  }
  if (part.type.startsWith('data-')) return [part.type, part.data.state];
  return [part.type];
};
const parts = ({ answer }) => answer.parts.map(shown);

const hello = await say('hi');
const rate = await say('rate?');
const pay = await say('pay 5.00');
let refused;
try {
  await say('hi', { body: { agent: 'none' } });
} catch (error) {
  refused = error.message;
}
console.log(JSON.stringify({
  hello: parts(hello),
  rate: parts(rate),
  output: rate.answer.parts.find((part) => part.type === 'dynamic-tool').output,
  pay: parts(pay),
  finish: pay.finish,
  'one conversation': hello.answer.metadata.conversationId === pay.answer.metadata.conversationId,
  'nothing to resume': await transport.reconnectToStream({ chatId: 'chat-1' }),
  refused,
}));
