// What the server scenarios of the conformance suite need around the program: `fixture.mjs PORT TARGET TOKEN`. On PORT it is
// a server with the tools and prompts that the suite asks for (revision 2025-11-25, by hand, without a session). On
// PORT + 1 it passes requests on to TARGET and adds the token that the suite does not send.
import http from "node:http";

const [port, target, token] = [Number(process.argv[2]), process.argv[3], process.argv[4]];
const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

const text = (text) => ({ type: "text", text });
const image = { type: "image", data: PNG, mimeType: "image/png" };
const resource = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const none = { type: "object", properties: {} };

const tools = {
  test_simple_text: { call: () => [text("This is a simple text response for testing.")] },
  test_image_content: { call: () => [image] },
  test_audio_content: { call: () => [{ type: "audio", data: WAV, mimeType: "audio/wav" }] },
  test_embedded_resource: {
    call: () => [resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
  },
  test_multiple_content_types: {
    call: () => [
      text("Multiple content types test:"),
      image,
      resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
  },
  test_error_handling: {
    isError: true,
    call: () => [text("This tool intentionally returns an error for testing")],
  },
  test_tool_with_progress: {
    call: async (progress) => {
      for (const done of [0, 50, 100]) {
        progress(done);
        await pause(50);
      }
      return [text("done")];
    },
  },
  test_streaming_elicitation: { call: () => [text("asked nothing")] },
  test_logging_tool: { call: () => [text("logged nothing")] },
  json_schema_2020_12_tool: {
    description: "Tool with JSON Schema 2020-12 features",
    inputSchema: {
      $schema: "https://json-schema.org/draft/2020-12/schema",
      type: "object",
      $defs: {
        address: {
          $anchor: "addressDef",
          type: "object",
          properties: { street: { type: "string" }, city: { type: "string" } },
        },
      },
      properties: {
        name: { type: "string" },
        address: { $ref: "#/$defs/address" },
        contactMethod: { type: "string", enum: ["phone", "email"] },
        phone: { type: "string" },
        email: { type: "string" },
      },
      allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
      if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
      then: { required: ["phone"] },
      else: { required: ["email"] },
      additionalProperties: false,
    },
    call: () => [text("ok")],
  },
};

const user = (content) => ({ role: "user", content });
const prompts = {
  test_simple_prompt: { get: () => [user(text("This is a simple prompt for testing."))] },
  test_prompt_with_arguments: {
    arguments: ["arg1", "arg2"],
    get: ({ arg1, arg2 }) => [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  },
  test_prompt_with_embedded_resource: {
    arguments: ["resourceUri"],
    get: ({ resourceUri }) => [
      user(resource(resourceUri, "text/plain", "Embedded resource content for testing.")),
      user(text("Please process the embedded resource above.")),
    ],
  },
  test_prompt_with_image: { get: () => [user(image), user(text("Please analyze the image above."))] },
};

const methods = {
  initialize: () => ({
    protocolVersion: "2025-11-25",
    capabilities: { tools: {}, prompts: {}, completions: {} },
    serverInfo: { name: "fixture", version: "1" },
  }),
  ping: () => ({}),
  "tools/list": () => ({
    tools: Object.entries(tools).map(([name, { description, inputSchema }]) => ({
      name,
      description: description ?? name,
      inputSchema: inputSchema ?? none,
    })),
  }),
  "tools/call": async ({ name }, progress) => {
    const tool = tools[name];
    return { content: await tool.call(progress), isError: tool.isError ?? false };
  },
  "prompts/list": () => ({
    prompts: Object.entries(prompts).map(([name, prompt]) => ({
      name,
      description: name,
      arguments: (prompt.arguments ?? []).map((name) => ({ name, description: name, required: true })),
    })),
  }),
  "prompts/get": ({ name, arguments: given }) => ({ messages: prompts[name].get(given ?? {}) }),
  "completion/complete": () => ({ completion: { values: ["paris", "park"], total: 2, hasMore: false } }),
};

async function answer(request, response) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  if (request.method !== "POST") return response.writeHead(405).end();
  const message = JSON.parse(Buffer.concat(chunks).toString());
  if (message.id === undefined) return response.writeHead(202).end();
  const progressToken = message.params?._meta?.progressToken;
  const method = methods[message.method];
  if (!method) {
    const error = { code: -32601, message: "no such method" };
    response.writeHead(200, { "content-type": "application/json" });
    return response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, error }));
  }
  const streams = message.method === "tools/call" && progressToken !== undefined;
  response.writeHead(200, { "content-type": streams ? "text/event-stream" : "application/json" });
  const send = (it) => response.write(`event: message\ndata: ${JSON.stringify({ jsonrpc: "2.0", ...it })}\n\n`);
  const progress = (progress) =>
    streams && send({ method: "notifications/progress", params: { progressToken, progress, total: 100 } });
  const result = await method(message.params ?? {}, progress);
  if (!streams) return response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, result }));
  send({ id: message.id, result });
  return response.end();
}

function pass(request, response) {
  const url = new URL(target);
  const headers = { ...request.headers, authorization: `Bearer ${token}` };
  const options = { host: url.hostname, port: url.port, path: url.pathname, method: request.method, headers };
  const on = http.request(options, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  on.on("error", () => response.writeHead(502).end());
  response.on("close", () => on.destroy());
  request.pipe(on);
}

http.createServer(answer).listen(port, "127.0.0.1");
if (target) http.createServer(pass).listen(port + 1, "127.0.0.1");
