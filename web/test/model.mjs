// A model that answers by rules: an OpenAI-compatible server for the browser test and for trying the page by hand.
//   node test/model.mjs 9100
import http from 'node:http';

const chunk = (delta, finish = null) =>
  `data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', created: 0, model: 'rules', choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`;

/** What the model does with the newest message: a text, or calls of tools. */
function decide({ messages }) {
  const last = messages.at(-1);
  const whole = typeof last.content === 'string' ? last.content : (last.content ?? []).map((part) => part.text ?? '').join('');
  // What the service adds to a question is not what the person said.
  const said = whole.replace(/\n\n\[Note of the service:[^\]]*\]$/, '');
  if (said.includes('"follow_ups"')) return { text: '{"follow_ups": ["And the pound?"]}' };
  if (said.includes('"tags"')) return { text: '{"tags": ["Money"]}' };
  if (said.includes('"title"')) return { text: '{"title": "Rates of the day"}' };
  if (Array.isArray(last.content) && last.content.some((part) => part.type === 'image_url')) return { text: 'I see one picture.' };
  const asked = JSON.stringify(messages);
  if (last.role === 'tool' && asked.includes('several') && messages.filter(({ role }) => role === 'tool').length === 2)
    return { tool: 'bank__get_balances', arguments: {} };
  if (last.role === 'tool') {
    const code = /waiting for approval (\w+)/.exec(said)?.[1];
    const slow = asked.includes('slowly');
    if (code) return { text: `I have prepared the payment. It waits for approval under the code **${code}**.${slow ? ' word'.repeat(200) : ''}`, slow };
    const { rate } = said.startsWith('{') ? JSON.parse(said) : {};
    return { text: rate ? `One euro is **${rate}** dollars.` : `The tool says: ${said}` };
  }
  if (/outcome of approval/.test(said)) return { text: 'Your request has an outcome; see above.' };
  if (/several/i.test(said)) return { tools: ['USD', 'GBP'].map((to) => ({ tool: 'bank__get_exchange_rate', arguments: { from: 'EUR', to } })) };
  if (/wrong/i.test(said)) return { tool: 'bank__get_exchange_rate', arguments: { from: 'EUR' } };
  if (/balances/i.test(said)) return { tool: 'bank__get_balances', arguments: {} };
  if (/rate/i.test(said)) return { tool: 'bank__get_exchange_rate', arguments: { from: 'EUR', to: 'USD' } };
  if (/pay/i.test(said))
    return { tool: 'bank__send_money', arguments: { from_account: 'current', to: 'acme', amount: '12.50', currency: 'EUR' } };
  if (/long/i.test(said)) return { text: 'word '.repeat(400), slow: true };
  if (/silent/i.test(said)) return { text: '' };
  if (/table/i.test(said))
    return {
      text: '## Balances\n\n| Account | Amount |\n|---|---:|\n| current | 100.00 EUR |\n| savings | 2,500.00 EUR |\n\n- one\n- two\n\n```json\n{"a": 1}\n```\n\n<img src=x onerror="document.title=\'broken\'"> [a link](https://example.org) [bad](javascript:alert(1)) ![picture](https://example.org/p.png)',
    };
  return { text: 'I can look up *exchange rates* and send money.' };
}

export function startModel(port = 0) {
  const server = http.createServer(async (request, response) => {
    let body = '';
    for await (const piece of request) body += piece;
    if (request.method === 'GET') {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ object: 'list', data: [] }));
      return;
    }
    const next = decide(JSON.parse(body));
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const calls = next.tools ?? (next.tool ? [next] : []);
    if (calls.length > 0) {
      const callOf = ({ tool, arguments: given }, index) => ({ index, id: `call_${Date.now()}_${index}`, type: 'function', function: { name: tool, arguments: JSON.stringify(given) } });
      response.write(chunk({ role: 'assistant', tool_calls: calls.map(callOf) }));
      response.write(chunk({}, 'tool_calls'));
    } else {
      for (const word of next.text.split(/(?<= )/)) {
        if (response.destroyed) return;
        response.write(chunk({ content: word }));
        if (next.slow) await new Promise((resolve) => setTimeout(resolve, 50));
      }
      response.write(chunk({}, 'stop'));
    }
    response.end('data: [DONE]\n\n');
  });
  return new Promise((resolve) => server.listen(port, '127.0.0.1', () => resolve({ url: `http://127.0.0.1:${server.address().port}/v1`, server })));
}

if (process.argv[1]?.endsWith('model.mjs')) console.log((await startModel(Number(process.argv[2] ?? 9100))).url);
