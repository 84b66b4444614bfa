// A bank as an MCP server, with the official SDK. It counts how often each transfer was executed.
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

class Ledger {
  #receipts = new Map();

  /** Records an execution. Its receipt is known to nobody else. */
  add(reference) {
    const receipt = crypto.randomUUID();
    this.#receipts.set(reference, [...this.receipts(reference), receipt]);
    return receipt;
  }

  receipts(reference) {
    return this.#receipts.get(reference) ?? [];
  }

  of(reference) {
    return this.receipts(reference).length;
  }
}

export async function startBank() {
  const ledger = new Ledger();
  const server = createServer(async (request, response) => {
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    response.on('close', () => transport.close());
    await offer(ledger).connect(transport);
    await transport.handleRequest(request, response);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { ledger, server, url: `http://127.0.0.1:${server.address().port}/mcp` };
}

function offer(ledger) {
  const bank = new McpServer({ name: 'bank', version: '1.0.0' });
  const inputSchema = { reference: z.string(), seconds: z.number().describe('How long it takes') };
  // Somebody has to consent to the second one.
  for (const tool of ['move_money', 'lend_cash'])
    bank.registerTool(tool, { description: 'Moves money', inputSchema }, async ({ reference, seconds }) => {
      const receipt = ledger.add(reference);
      await sleep(1000 * seconds);
      return { content: [{ type: 'text', text: `The receipt of ${reference} is ${receipt}.` }] };
    });
  return bank;
}
