// What the official AG-UI client sees of this program, as JSON on standard output.
import { HttpAgent } from '@ag-ui/client';

const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
const agent = new HttpAgent({ url: `${process.env.URL}/v1/agui/bank`, headers, threadId: 'thread-1' });
let messages = 0;

// Says something; the messages of the answer.
async function say(text, input = {}) {
  agent.addMessage({ id: `u${(messages += 1)}`, role: 'user', content: text });
  const { newMessages } = await agent.runAgent(input);
  return newMessages.map((message) => {
    if (message.role === 'tool') return ['tool'];
    return [message.role, message.content ?? message.toolCalls.map((call) => call.function.name)];
  });
}

async function refusal(ask) {
  try {
    await ask();
  } catch (error) {
    return error.message;
  }
  return 'not refused';
}

const hello = await say('hi');
const rate = await say('rate?');
await say('pay 5.00');
const interrupts = agent.pendingInterrupts;
// A thread with an interrupt goes on when the next run answers it.
const blocked = await refusal(() => agent.runAgent());
const resume = interrupts.map(({ id }) => ({ interruptId: id, status: 'cancelled' }));
await say('never mind', { resume });
const none = new HttpAgent({ url: `${process.env.URL}/v1/agui/none`, headers });
none.addMessage({ id: 'u', role: 'user', content: 'hi' });
console.log(JSON.stringify({
  hello,
  rate,
  interrupts: interrupts.map(({ reason, toolCallId, expiresAt }) => [reason, !!toolCallId, Date.parse(expiresAt) > Date.now()]),
  blocked,
  cancelled: agent.pendingInterrupts,
  refused: await refusal(() => none.runAgent()),
}));
