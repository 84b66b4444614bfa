// A frontend as its developer would write it, from the generated document alone: it opens a conversation, listens,
// says something, lets somebody approve what was asked for, and exports what was said.
import type { components, paths } from "./api";

declare const process: { env: Record<string, string | undefined> };

type Schemas = components["schemas"];
type Answer<P extends keyof paths, M extends keyof paths[P], S extends number> = paths[P][M] extends {
  responses: { [K in S]: { content: { "application/json": infer A } } };
}
  ? A
  : never;

const url = need("URL");
const [ann, bob] = [need("ANN"), need("BOB")];

function need(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set`);
  return value;
}

class Refused extends Error {
  constructor(readonly problem: Schemas["ProblemDocument"]) {
    super(problem.detail);
  }
}

async function ask<T>(token: string, method: string, path: string, body?: unknown, key?: string): Promise<T> {
  const headers: Record<string, string> = { authorization: `Bearer ${token}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key !== undefined) headers["idempotency-key"] = key;
  const answer = await fetch(url + path, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  if (!answer.ok) throw new Refused((await answer.json()) as Schemas["ProblemDocument"]);
  return (await answer.json()) as T;
}

/** The events of a stream that a ticket opens, as `EventSource` would read them. */
async function* events(conversation: string): AsyncGenerator<Schemas["ConversationEvent"]> {
  const made = await ask<Answer<"/v1/events/ticket", "post", 200>>(ann, "POST", "/v1/events/ticket");
  const answer = await fetch(`${url}/v1/conversations/${conversation}/events?ticket=${encodeURIComponent(made.ticket)}`);
  if (answer.body === null) throw new Error("no stream");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const field = (name: string) => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        const [event, data] = [field("event"), field("data")];
        if (event && data) yield { event, data: JSON.parse(data) } as Schemas["ConversationEvent"];
      }
    }
  } finally {
    await reader.cancel();
  }
}

async function approve(): Promise<string> {
  const waiting = await ask<Answer<"/v1/approvals", "get", 200>>(bob, "GET", "/v1/approvals?decidable=true");
  const request = waiting.items[0];
  if (request === undefined) throw new Error("nothing waits");
  const decision: Schemas["DecisionRequest"] = { decision: "approve", args_sha256: request.args_sha256 };
  const path = `/v1/approvals/${request.id}/decision`;
  return (await ask<Answer<"/v1/approvals/{id}/decision", "post", 200>>(bob, "POST", path, decision)).code;
}

async function main() {
  type Opened = Answer<"/v1/conversations", "post", 201>;
  const open = () => ask<Opened>(ann, "POST", "/v1/conversations", { agent: "bank", title: "Rent" }, "flow-open");
  const conversation = await open();
  // A button that was pressed twice.
  const again = await open();
  const stream = events(conversation.id);
  const first = stream.next();
  const message: Schemas["MessageRequest"] = { text: "pay 10.00" };
  const path = `/v1/conversations/${conversation.id}/messages`;
  const posted = await ask<Answer<"/v1/conversations/{id}/messages", "post", 202>>(ann, "POST", path, message);
  const seen = new Set<string>();
  let [text, code, outcome] = ["", "", ""];
  for (let next = await first; !next.done && outcome === ""; next = await stream.next()) {
    const event = next.value;
    seen.add(event.event);
    if (event.event === "delta") text += event.data.text;
    if (event.event === "run" && event.data.run_id === posted.run.id && event.data.status === "succeeded") {
      code = await approve();
    }
    if (event.event === "message") {
      const notes = event.data.parts.flatMap((part) => (part.type === "approval" ? [part] : []));
      outcome = notes.find((note) => note.state === "succeeded")?.text ?? "";
    }
  }
  await stream.return(undefined);
  const refused = await ask<unknown>(ann, "GET", "/v1/conversations?limit=0").catch((error: Refused) => error.problem);
  const exported = await fetch(`${url}/v1/conversations/${conversation.id}/export`, {
    headers: { authorization: `Bearer ${ann}` },
  });
  const markdown = await exported.text();
  console.log(JSON.stringify({ same: again.id === conversation.id, seen: [...seen], text, code, outcome, refused, markdown }));
}

await main();
export {};
