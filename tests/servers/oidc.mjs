// npm `oidc-provider` as the authorization server of a small MCP server: `oidc.mjs LIFE [par]`. With `par` requests have
// to be pushed (RFC 9126). Access tokens live for LIFE seconds, refresh tokens rotate, clients register themselves, and everybody who comes is let in: `?who=` at the
// interaction says as whom. `GET /count` on the server says how often tokens were refreshed. It prints
// `listening on port N`, the port of the MCP server; the provider has a port of its own.
import http from "node:http";
import Provider from "oidc-provider";

const life = Number(process.argv[2] ?? 3600);
const listen = (server) => new Promise((done) => server.listen(0, "127.0.0.1", () => done(server.address().port)));

const [idp, mcp] = [http.createServer(), http.createServer()];
const issuer = `http://127.0.0.1:${await listen(idp)}`;
const base = `http://127.0.0.1:${await listen(mcp)}`;
const resource = `${base}/mcp`;
const mustPush = process.argv[3] === "par";
const count = { refreshed: 0, revoked: 0, pushed: 0 };

const provider = new Provider(issuer, {
  ttl: { AccessToken: life, RefreshToken: 86400, Grant: 86400, Session: 86400, Interaction: 600 },
  rotateRefreshToken: true,
  scopes: ["openid", "offline_access", "notes:read", "notes:write"],
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  clientDefaults: { grant_types: ["authorization_code", "refresh_token"] },
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    revocation: { enabled: true },
    pushedAuthorizationRequests: { enabled: mustPush, requirePushedAuthorizationRequests: mustPush },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      getResourceServerInfo: () => ({ scope: "notes:read notes:write", accessTokenTTL: life }),
      useGrantedResource: () => true,
    },
  },
});
provider.on("grant.success", (context) => {
  if (context.oidc.params.grant_type === "refresh_token") count.refreshed += 1;
});
provider.on("pushed_authorization_request.success", () => (count.pushed += 1));
provider.on("grant.revoked", () => (count.revoked += 1));
const callback = provider.callback();

/** Logs everybody in as `ann` and agrees to all that is asked for. */
async function interact(request, response) {
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    return provider.interactionFinished(request, response, { login: { accountId: "ann" } });
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope ?? "");
  grant.addResourceScope(resource, params.scope ?? "");
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

idp.on("request", (request, response) => {
  if (!request.url.startsWith("/interaction/")) return callback(request, response);
  interact(request, response).catch((error) => response.writeHead(500).end(String(error)));
});

const tools = [{ name: "whoami", inputSchema: { type: "object", properties: {} } }];

function answer({ method }, who) {
  if (method === "initialize") {
    return { protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "oidc", version: "1" } };
  }
  if (method === "tools/list") return { tools };
  if (method === "tools/call") return { content: [{ type: "text", text: who }] };
}

async function serve(request, response) {
  const json = (status, body, headers = {}) => {
    response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
  };
  if (request.url === "/count") return json(200, count);
  if (request.url === "/.well-known/oauth-protected-resource/mcp") {
    return json(200, { resource, authorization_servers: [issuer], scopes_supported: ["notes:read"] });
  }
  const token = await provider.AccessToken.find((request.headers.authorization ?? "").replace("Bearer ", ""));
  if (!token || token.isExpired || token.aud !== resource) {
    const metadata = `${base}/.well-known/oauth-protected-resource/mcp`;
    return json(401, {}, { "www-authenticate": `Bearer resource_metadata="${metadata}"` });
  }
  let body = "";
  for await (const piece of request) body += piece;
  if (request.method !== "POST") return response.writeHead(405).end();
  const message = JSON.parse(body);
  if (message.id === undefined) return response.writeHead(202).end();
  const result = answer(message, token.accountId);
  const error = { code: -32601, message: "there is no such method" };
  json(200, { jsonrpc: "2.0", id: message.id, ...(result ? { result } : { error }) });
}

mcp.on("request", (request, response) => {
  serve(request, response).catch((error) => response.writeHead(500).end(String(error)));
});
console.log(`listening on port ${new URL(base).port}`);
