// What a typed client says of the API: it compiles in strict mode, or the document says something wrong.
import type { components, paths } from "./api";

type Schemas = components["schemas"];
type Answer<P extends keyof paths, M extends keyof paths[P], S extends number> = paths[P][M] extends {
  responses: { [K in S]: { content: { "application/json": infer A } } };
}
  ? A
  : never;

export const run: Schemas["RunRequest"] = {
  agent_name: "bank",
  prompt: "What is the rate?",
  params: { topic: "rates", depth: 2 },
  scope: { context_id: "acme", nested: { a: 1 } },
};

export const decision: Schemas["DecisionRequest"] = { decision: "approve", args_sha256: "00" };

export const skill: Schemas["SkillRunRequest"] = { arguments: { from: "EUR", to: "USD" } };

export const key: Schemas["KeyRequest"] = {
  name: "web",
  scopes: ["chat"],
  chat: { keep_running: true, tool_calls: "details" },
};

export function title(list: Answer<"/v1/conversations", "get", 200>): string {
  return list.items.map((conversation) => conversation.title).join();
}

export function waiting(list: Answer<"/v1/approvals", "get", 200>): string[] {
  return list.items.filter((request) => request.state === "pending").map((request) => request.code);
}

export function tokens(list: Answer<"/v1/admin/usage", "get", 200>): number {
  return list.items.reduce((sum, line) => sum + line.input_tokens + line.output_tokens, 0);
}

export function prefixes(list: Answer<"/v1/admin/keys", "get", 200>): string[] {
  return list.items.map((made) => made.prefix);
}

export const patch: Schemas["ConversationPatch"] = { title: "Taxes", archived: false, pinned: true };

export const edit: Schemas["MessageRequest"] = { replaces: "01a203d7-e05f-71e1-9587-1fd9c1ef101d", text: "again" };

export const withFile: Schemas["MessageRequest"] = { text: "What is it?", attachments: ["01a203d7-e05f-71e1-9587-1fd9c1ef101d"] };

export const opinion: Schemas["Feedback"] = { rating: "down", comment: "too short" };

/** The versions of one message: the branches that begin in its place. */
export function versions(list: Answer<"/v1/conversations/{id}/branches", "get", 200>, seq: number): number[] {
  return list.items.filter((branch) => branch.from_seq === seq).map((branch) => branch.number);
}

/** A card of a tool call, from messages alone. */
export function cards(page: Answer<"/v1/conversations/{id}/messages", "get", 200>): string[] {
  const parts = page.items.flatMap((message) => message.parts);
  return parts.flatMap((part) => {
    if (part.type !== "tool_call") return [];
    const result = parts.find((other) => other.type === "tool_result" && other.call_id === part.call_id);
    const outcome = result?.type === "tool_result" ? `${result.status} in ${result.took_ms ?? "?"} ms` : "under way";
    return [`${part.server ?? "?"} ${part.tool ?? part.name}(${JSON.stringify(part.arguments)}): ${outcome}`];
  });
}

export function found(list: Answer<"/v1/conversations", "get", 200>): string[] {
  return list.items.filter((item) => !item.archived).map((item) => item.found?.text ?? item.title);
}

export function rolesAt(me: Answer<"/v1/me", "get", 200>, agent: string): string[] {
  return me.agents.find((one) => one.agent === agent)?.roles ?? [];
}

export function runsLeft(me: Answer<"/v1/me", "get", 200>): number {
  return me.usage.runs_limit === undefined || me.usage.runs_limit === null ? Infinity : me.usage.runs_limit - me.usage.runs;
}

export function shown(event: Schemas["ConversationEvent"]): string {
  switch (event.event) {
    case "message":
      return event.data.parts.map((part) => (part.type === "text" ? part.text : part.type)).join();
    case "run":
      return event.data.status;
    case "delta":
      return event.data.text;
    case "tool_started":
      return `${event.data.server} ${event.data.tool}`;
    case "server_unavailable":
      return event.data.reason;
    default:
      return event.event;
  }
}

export function badge(event: Schemas["UserEvent"]): number {
  return event.event === "badge" ? event.data.pending_approvals : 0;
}
