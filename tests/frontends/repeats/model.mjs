// A model that calls a tool and then fails as its question says: an OpenAI-compatible server.
import { EventEmitter } from 'node:events';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

const status = (code, error = 'on holiday') => (answer) => {
  answer.writeHead(code, { 'content-type': 'application/json' }).end(JSON.stringify({ error: { message: error } }));
};
const cut = (answer) => answer.destroy();
const chunk = (delta, finish_reason = null) =>
  `data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', created: 0, model: 'scripted', choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
const begin = (answer) => answer.writeHead(200, { 'content-type': 'text/event-stream' });
const say = (answer, text) => begin(answer).end(`${chunk({ role: 'assistant', content: text })}${chunk({}, 'stop')}data: [DONE]\n\n`);

/** What the model does after the call. */
export const ENDINGS = {
  500: status(500),
  502: status(502),
  503: status(503),
  429: status(429),
  408: status(408),
  409: status(409),
  long: status(400, "This model's maximum context length is 8192 tokens. Please reduce the length of the messages."),
  cut,
  half: async (answer) => {
    begin(answer).write(chunk({ role: 'assistant', content: 'Half of an ' }));
    await sleep(100);
    cut(answer);
  },
  garbage: (answer) => begin(answer).end('data: {"choices": [\n\ndata: <html>\n\n'),
  hang: async (answer) => {
    await sleep(3000);
    cut(answer);
  },
  // Here something else fails: the client's patience, or its connection.
  slow: async (answer, receipt) => {
    await sleep(6000);
    say(answer, receipt);
  },
  stall: async (answer, receipt) => {
    await sleep(20_000);
    say(answer, receipt);
  },
  // It was slow before its call.
  late: (answer, receipt) => say(answer, receipt),
  well: (answer, receipt) => say(answer, receipt),
  alike: (answer, receipt) => say(answer, receipt.startsWith('The receipt') ? 'It is done.' : receipt),
};

/** What is asked: the model moves money under a reference, and ends in this way. */
export const question = ({ reference, tool = 'move_money', seconds = 0, ending }) =>
  `Please ${tool} for ${reference}, ${seconds} s, then ${ending}.`;
const QUESTION = /Please (\w+) for (\S+), (\d+) s, then (\w+)\./;

export async function startModel() {
  /** What the model was sent, one text for each request. */
  const requests = [];
  /** Says the reference of a turn whose call has a result. */
  const called = new EventEmitter().setMaxListeners(0);
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const piece of request) body += piece;
    requests.push(body);
    const { messages, tools } = JSON.parse(body);
    const last = messages.at(-1);
    const asked = messages.findLast(({ role, content }) => role === 'user' && QUESTION.test(textOf(content)));
    if (!tools || !asked) return say(response, 'A title');
    const [, tool, reference, seconds, ending] = QUESTION.exec(textOf(asked.content));
    if (last.role === 'tool') {
      called.emit(reference);
      return ENDINGS[ending](response, textOf(last.content));
    }
    if (ending === 'early') return status(500)(response);
    if (ending === 'late') await sleep(21_000);
    const arguments_ = JSON.stringify({ reference, seconds: Number(seconds) });
    const call = { index: 0, id: `call_${requests.length}`, type: 'function', function: { name: `bank__${tool}`, arguments: arguments_ } };
    begin(response).end(`${chunk({ role: 'assistant', tool_calls: [call] })}${chunk({}, 'tool_calls')}data: [DONE]\n\n`);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { requests, called, server, url: `http://127.0.0.1:${server.address().port}/v1` };
}

const textOf = (content) => (typeof content === 'string' ? content : (content ?? []).map(({ text }) => text ?? '').join(''));
