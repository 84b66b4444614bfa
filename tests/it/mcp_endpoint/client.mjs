// What the official TypeScript clients see of the endpoint, as JSON on standard output: `client.mjs URL TOKEN`. The
// newest one in both eras and the one before it must see the same.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, token] = process.argv.slice(2);
const require = createRequire(new URL("../../servers/package.json", import.meta.url));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

async function look(Client, Transport, options) {
  const client = new Client({ name: "test", version: "1" }, options);
  const headers = { Authorization: `Bearer ${token}` };
  await client.connect(new Transport(new URL(url), { requestInit: { headers } }));
  const { tools } = await client.listTools();
  const rate = (args) => client.callTool({ name: "bank__get_exchange_rate", arguments: args });
  const good = await rate({ from: "EUR", to: "USD" });
  const misfit = await rate({ from: 1 });
  let unknown = false;
  try {
    const answer = await client.callTool({ name: "bank__send_money", arguments: {} });
    unknown = answer.isError === true;
  } catch (error) {
    unknown = error.code === -32602;
  }
  await client.close();
  return {
    tools: tools.map((tool) => tool.name),
    structured: typeof good.structuredContent === "object" && good.isError !== true,
    unknown,
    misfit: misfit.isError === true,
  };
}

const newest = await load("@modelcontextprotocol/client");
const older = await load("@modelcontextprotocol/sdk/client/index.js");
const transport = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
const pinned = { versionNegotiation: { mode: { pin: "2026-07-28" } } };
const seen = [
  await look(newest.Client, newest.StreamableHTTPClientTransport, pinned),
  await look(newest.Client, newest.StreamableHTTPClientTransport),
  await look(older.Client, transport.StreamableHTTPClientTransport),
].map((one) => JSON.stringify(one));
if (new Set(seen).size !== 1) throw new Error(`they see different things: ${seen.join("\n")}`);
console.log(seen[0]);
