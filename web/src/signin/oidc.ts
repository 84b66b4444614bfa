/**
 * OpenID Connect with PKCE: the page is a public client of the tenant's provider. Tokens stay in memory. While the
 * browser is at the provider, this tab keeps the verifier, the state and the nonce, and nothing else.
 */
import * as oauth from 'oauth4webapi';
import { type Answer, type Pending, type Provider, rememberPending } from './remembered';
import { pageAddress } from './tenant';

/** What a provider issued. */
export interface Tokens {
  token: string;
  /** Seconds until it ends, where the provider says so. */
  lifetime: number | undefined;
  refreshToken: string | undefined;
}

/** A tenant's own provider knows the address of the tenant's page. */
const redirectUri = ({ tenant }: Provider) => `${window.location.origin}/${tenant ? `?tenant=${encodeURIComponent(tenant)}` : ''}`;
const clientOf = (provider: Provider): oauth.Client => ({ client_id: provider.client_id, token_endpoint_auth_method: 'none' });
/** A provider that has not answered after this time, in milliseconds, keeps nobody from the page's own sign-in. */
const PATIENCE = 8_000;
/** The service lists issuers without TLS on loopback addresses only. */
const optionsOf = (provider: Provider) => ({
  [oauth.allowInsecureRequests]: provider.issuer.startsWith('http:'),
  signal: () => AbortSignal.timeout(PATIENCE),
});

async function discover(provider: Provider): Promise<oauth.AuthorizationServer> {
  const issuer = new URL(provider.issuer);
  return oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, optionsOf(provider)));
}

/**
 * Leaves the page for the provider; returns if the provider does not answer. `isSilent`: the provider must not ask the
 * user anything, and the *Back* of the browser passes it over.
 */
export async function beginSignIn(provider: Provider, isSilent: boolean): Promise<void> {
  const server = await discover(provider);
  const pending: Pending = {
    issuer: provider.issuer,
    clientId: provider.client_id,
    verifier: oauth.generateRandomCodeVerifier(),
    state: oauth.generateRandomState(),
    nonce: oauth.generateRandomNonce(),
    page: `${pageAddress()}${window.location.hash}`,
    isSilent,
  };
  const address = new URL(server.authorization_endpoint ?? '');
  const parameters = {
    ...provider.parameters,
    response_type: 'code',
    client_id: provider.client_id,
    redirect_uri: redirectUri(provider),
    scope: provider.scope,
    code_challenge: await oauth.calculatePKCECodeChallenge(pending.verifier),
    code_challenge_method: 'S256',
    state: pending.state,
    nonce: pending.nonce,
    ...(isSilent && { prompt: 'none' }),
  };
  for (const [name, value] of Object.entries(parameters)) address.searchParams.set(name, value);
  rememberPending(pending);
  // Who comes back by the browser's own button meets the page as it was left: waiting.
  window.addEventListener('pageshow', ({ persisted }) => persisted && window.location.reload());
  if (isSilent) window.location.replace(address);
  else window.location.assign(address);
  return new Promise((resolve) => setTimeout(resolve, PATIENCE));
}

/** The end of a sign-in that began in this tab. `undefined`: there is none, or the provider has to ask the user first. */
export async function finishSignIn(providers: Provider[], { address, pending }: Answer): Promise<{ provider: Provider; tokens: Tokens } | undefined> {
  if (!pending || (pending.isSilent && address.searchParams.has('error'))) return undefined;
  const provider = providers.find((one) => one.issuer === pending.issuer && one.client_id === pending.clientId);
  if (!provider) return undefined;
  const [server, client] = [await discover(provider), clientOf(provider)];
  const answer = oauth.validateAuthResponse(server, client, address, pending.state);
  const response = await oauth.authorizationCodeGrantRequest(server, client, oauth.None(), answer, redirectUri(provider), pending.verifier, {
    ...optionsOf(provider),
    additionalParameters: provider.parameters,
  });
  const issued = await oauth.processAuthorizationCodeResponse(server, client, response, {
    expectedNonce: pending.nonce,
    requireIdToken: true,
  });
  return { provider, tokens: tokensOf(provider, issued) };
}

/** New tokens for a refresh token. */
export async function refreshTokens(provider: Provider, refreshToken: string): Promise<Tokens> {
  const [server, client] = [await discover(provider), clientOf(provider)];
  const response = await oauth.refreshTokenGrantRequest(server, client, oauth.None(), refreshToken, {
    ...optionsOf(provider),
    additionalParameters: provider.parameters,
  });
  const issued = await oauth.processRefreshTokenResponse(server, client, response);
  return tokensOf(provider, { refresh_token: refreshToken, ...issued });
}

/** Whether the provider refuses the refresh token, so that trying again is of no use. */
export const isRefused = (error: unknown) => error instanceof oauth.ResponseBodyError && error.error === 'invalid_grant';

function tokensOf(provider: Provider, issued: oauth.TokenEndpointResponse): Tokens {
  const token = provider.token === 'id_token' ? issued.id_token : issued.access_token;
  return { token: token ?? '', lifetime: issued.expires_in, refreshToken: issued.refresh_token };
}
