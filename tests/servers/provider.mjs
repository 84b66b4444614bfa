// npm `oidc-provider` at which people sign in to the service itself: `provider.mjs LIFE`. It lets everybody in as `ann`
// who comes with a browser or with the code of a device. Access tokens are JWTs for the service and live for LIFE
// seconds; refresh tokens rotate. `GET /count` says how often tokens were refreshed and ended; `POST /end` refuses every
// refresh from there on. It prints `listening on port N`.
import { generateKeyPairSync } from "node:crypto";
import http from "node:http";
import Provider from "oidc-provider";

const RESOURCE = "https://chat.example.org";
const life = Number(process.argv[2] ?? 3600);
const server = http.createServer();
const port = await new Promise((done) => server.listen(0, "127.0.0.1", () => done(server.address().port)));
const count = { refreshed: 0, revoked: 0, devices: 0 };
let isOver = false;

const key = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" });
const resource = {
  scope: "chat",
  audience: RESOURCE,
  accessTokenFormat: "jwt",
  accessTokenTTL: life,
  jwt: { sign: { alg: "RS256" } },
};
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "terminal",
      application_type: "native",
      redirect_uris: ["http://127.0.0.1/callback"],
      token_endpoint_auth_method: "none",
      grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
    },
  ],
  jwks: { keys: [{ ...key, use: "sig", alg: "RS256", kid: "one" }] },
  scopes: ["openid", "offline_access", "chat"],
  rotateRefreshToken: () => true,
  issueRefreshToken: async () => true,
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: (_, token) => ({ name: token.accountId, roles: ["employee"] }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  features: {
    devInteractions: { enabled: false },
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => RESOURCE,
      getResourceServerInfo: () => resource,
      useGrantedResource: () => true,
    },
  },
});
provider.on("grant.success", ({ oidc }) => {
  if (oidc.params.grant_type === "refresh_token") count.refreshed += 1;
  if (oidc.params.grant_type.endsWith("device_code")) count.devices += 1;
});
provider.on("grant.revoked", () => (count.revoked += 1));
const callback = provider.callback();

/** Logs everybody in as `ann` and agrees to all that is asked for. */
async function interact(request, response) {
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    return provider.interactionFinished(request, response, { login: { accountId: "ann" } });
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  grant.addResourceScope(RESOURCE, params.scope);
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

server.on("request", (request, response) => {
  if (request.url === "/count") return response.end(JSON.stringify(count));
  if (request.url === "/end") return response.end(String((isOver = true)));
  if (isOver && request.url === "/token") return response.writeHead(400).end('{"error":"invalid_grant"}');
  if (!request.url.startsWith("/interaction/")) return callback(request, response);
  interact(request, response).catch((error) => response.writeHead(500).end(String(error)));
});
console.log(`listening on port ${port}`);
