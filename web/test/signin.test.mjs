// Signing in by OpenID Connect at an issuer of the tenant: npm `oidc-provider`, with its own pages for people.
import assert from 'node:assert/strict';
import { generateKeyPairSync } from 'node:crypto';
import http from 'node:http';
import { after, before, test } from 'node:test';
import Provider from 'oidc-provider';
import { check, startStage } from './support.mjs';

const RESOURCE = 'https://chat.example.org';
const OPERATOR = 'operator-token-of-the-tests-0123456789';

let [stage, server, issuer] = [];

/** An issuer that knows everybody. Its access tokens are JWTs for the resource. */
async function startIssuer(page) {
  server = http.createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  issuer = `http://127.0.0.1:${server.address().port}`;
  const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  const resource = { scope: 'chat', audience: RESOURCE, accessTokenFormat: 'jwt', accessTokenTTL: 3600, jwt: { sign: { alg: 'RS256' } } };
  const provider = new Provider(issuer, {
    clients: [['page', `${page}/`], ['page-of-demo', `${page}/?tenant=demo`]].map(([id, address]) => (
      { client_id: id, redirect_uris: [address], token_endpoint_auth_method: 'none', grant_types: ['authorization_code'] }
    )),
    jwks: { keys: [{ ...key, use: 'sig', alg: 'RS256', kid: 'one' }] },
    clientBasedCORS: () => true,
    features: {
      resourceIndicators: { enabled: true, getResourceServerInfo: () => resource, defaultResource: () => RESOURCE, useGrantedResource: () => true },
    },
    extraTokenClaims: (_, token) => ({ email: `${token.accountId}@example.org`, email_verified: true, name: token.accountId, roles: ['employee'] }),
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  });
  server.on('request', provider.callback());
}

/** The issuer has to know the page's address before the page is there. */
async function freePort() {
  const probe = http.createServer();
  await new Promise((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

before(async () => {
  const listen = `127.0.0.1:${await freePort()}`;
  await startIssuer(`http://${listen}`);
  const provider = { name: 'Acme', issuer, client_id: 'page', scope: 'openid chat', parameters: { resource: RESOURCE } };
  stage = await startStage({ settings: { CHATELAINE_LISTEN: listen, CHATELAINE_SIGN_IN: JSON.stringify([provider, { ...provider, name: 'Demo', tenant: 'demo', client_id: 'page-of-demo' }]), CHATELAINE_OPERATOR_TOKEN: OPERATOR } });
  const { items } = await stage.call(OPERATOR, 'GET', '/v1/admin/tenants');
  const trusted = { issuer, audience: RESOURCE, algorithm: 'RS256', jwks_url: `${issuer}/jwks` };
  await stage.call(OPERATOR, 'POST', `/v1/admin/tenants/${items[0].name}/issuers`, trusted);
});

after(async () => {
  server?.close();
  server?.closeAllConnections();
  await stage?.stop();
});

/** Another tab of the same browser. */
async function openTab(page, address = stage.origin) {
  const tab = await page.context().newPage();
  await tab.goto(address);
  return tab;
}

/** Notes with which `prompt` a browser asks the issuer. */
function listenForQuestions(page) {
  const prompts = [];
  page.context().on('request', (request) => {
    const { pathname, searchParams } = new URL(request.url());
    if (request.url().startsWith(issuer) && pathname === '/auth') prompts.push(searchParams.get('prompt') ?? 'login');
  });
  return prompts;
}

const signInButton = (page) => page.getByRole('button', { name: 'Sign in with Acme' });

async function enter(page, name, provider = 'Acme') {
  await page.getByRole('button', { name: `Sign in with ${provider}` }).click();
  await page.getByPlaceholder('Enter any login').fill(name);
  await page.getByPlaceholder('and password').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
}

test('a person signs in at the issuer, and a reload asks the issuer and not the person', async () => {
  const page = await stage.open({}, stage.origin);
  await signInButton(page).waitFor();
  await check(page, 'sign-in-provider');
  await enter(page, 'ines');
  await page.getByRole('heading', { name: 'Hello ines!' }).waitFor();
  assert.equal(new URL(page.url()).search, '');
  const stored = await page.evaluate(() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }, document.cookie]));
  assert.doesNotMatch(stored, /eyJ/);
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Connections' }).click();
  await page.getByRole('article', { name: 'bank' }).waitFor();
  await page.reload();
  await page.getByRole('article', { name: 'bank' }).waitFor();
  assert.match(page.url(), /#\/connections$/);
});

test('whoever signed out is asked again, and a sign-in that nobody began is none', async () => {
  const page = await stage.open({}, stage.origin);
  await enter(page, 'olga');
  await page.getByRole('button', { name: 'olga' }).click();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('button', { name: 'Sign in with Acme' }).waitFor();
  await page.reload();
  await page.getByRole('button', { name: 'Sign in with Acme' }).waitFor();
  await page.goto(`${stage.origin}/?code=stolen&state=made-up&iss=${encodeURIComponent(issuer)}`);
  await page.getByRole('button', { name: 'Sign in with Acme' }).waitFor();
  assert.equal(new URL(page.url()).search, '');
});

test('an issuer without a session of the person leads back to the sign-in', async () => {
  const page = await stage.open({}, stage.origin);
  await enter(page, 'lena');
  await page.getByRole('heading', { name: 'Hello lena!' }).waitFor();
  await page.context().clearCookies();
  await page.reload();
  await page.getByRole('button', { name: 'Sign in with Acme' }).waitFor();
  assert.equal(await page.getByRole('alert').count(), 0);
});

test("a tenant's page offers the tenant's own issuer, and stays the tenant's page", async () => {
  const page = await stage.open({}, stage.origin);
  await page.getByRole('button', { name: 'Sign in with Acme' }).waitFor();
  assert.equal(await page.getByRole('button', { name: 'Sign in with Demo' }).count(), 0);
  await page.goto(`${stage.origin}/?tenant=demo`);
  await enter(page, 'nora', 'Demo');
  await page.getByRole('heading', { name: 'Hello nora!' }).waitFor();
  assert.equal(new URL(page.url()).search, '?tenant=demo');
  await page.reload();
  await page.getByRole('heading', { name: 'Hello nora!' }).waitFor();
});

test('a new tab and a link from a mail ask the issuer, and not the person', async () => {
  const page = await stage.open({}, stage.origin);
  await enter(page, 'rosa');
  await page.getByRole('heading', { name: 'Hello rosa!' }).waitFor();
  const prompts = listenForQuestions(page);
  for (const hash of ['#/approvals/AB12', '#/connections']) {
    const tab = await openTab(page, `${stage.origin}/${hash}`);
    await tab.getByRole('button', { name: 'rosa' }).waitFor();
    assert.equal(tab.url(), `${stage.origin}/${hash}`);
  }
  assert.deepEqual(prompts, ['none', 'none']);
});

test('whoever is not known at the issuer is asked once, and still lands where the link points', async () => {
  const page = await stage.open({}, `${stage.origin}/healthz`);
  const prompts = listenForQuestions(page);
  await page.goto(`${stage.origin}/#/connections`);
  await signInButton(page).waitFor();
  assert.equal(await page.getByRole('alert').count(), 0);
  assert.deepEqual(prompts, ['none']);
  await page.reload();
  await signInButton(page).waitFor();
  assert.deepEqual(prompts, ['none'], 'a tab asks once');
  await enter(page, 'ada');
  await page.getByRole('article', { name: 'bank' }).waitFor();
  assert.match(page.url(), /#\/connections$/);
});

test('after a sign-out no tab asks, until somebody signs in', async () => {
  const page = await stage.open({}, stage.origin);
  await enter(page, 'ivan');
  await page.getByRole('heading', { name: 'Hello ivan!' }).waitFor();
  const other = await openTab(page);
  await other.getByRole('heading', { name: 'Hello ivan!' }).waitFor();
  await page.getByRole('button', { name: 'ivan' }).click();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await signInButton(page).waitFor();
  const prompts = listenForQuestions(page);
  const tab = await openTab(page);
  await signInButton(tab).waitFor();
  await other.reload();
  await signInButton(other).waitFor();
  assert.deepEqual(prompts, []);
  await signInButton(tab).click();
  await tab.getByRole('heading', { name: 'Hello ivan!' }).waitFor();
  await page.reload();
  await page.getByRole('heading', { name: 'Hello ivan!' }).waitFor();
  assert.deepEqual(prompts, ['login', 'none']);
});

test('an issuer that shows a page of its own keeps nobody', async () => {
  const page = await stage.open({}, `${stage.origin}/healthz`);
  await page.context().route(`${issuer}/auth?*`, (route) => route.fulfill({ status: 400, contentType: 'text/html', body: '<h1>Something is wrong</h1>' }));
  await page.goto(`${stage.origin}/#/approvals`);
  await page.getByRole('heading', { name: 'Something is wrong' }).waitFor();
  // The same link again, in the same tab.
  await page.goto(`${stage.origin}/#/approvals`);
  await signInButton(page).waitFor();
  assert.match(page.url(), /#\/approvals$/);
  // Another link of the mail, a minute later.
  await page.evaluate(() => localStorage.setItem('chatelaine.away', String(Date.now() - 60_000)));
  const tab = await openTab(page, `${stage.origin}/#/approvals`);
  await signInButton(tab).waitFor();
});

test('an issuer that does not answer keeps nobody', async () => {
  const page = await stage.open({}, `${stage.origin}/healthz`);
  await page.context().route(`${issuer}/.well-known/openid-configuration`, () => new Promise(() => {}));
  await page.goto(`${stage.origin}/#/approvals`);
  await signInButton(page).waitFor({ timeout: 20_000 });
});

test('Back leads to the page before, not to the issuer that was asked silently', async () => {
  const page = await stage.open({}, stage.origin);
  await enter(page, 'mila');
  const hello = page.getByRole('heading', { name: 'Hello mila!' });
  await hello.waitFor();
  const pages = page.getByRole('navigation', { name: 'Pages' });
  await pages.getByRole('link', { name: 'Connections' }).click();
  await page.getByRole('article', { name: 'bank' }).waitFor();
  await page.reload();
  await page.getByRole('article', { name: 'bank' }).waitFor();
  await page.goBack();
  await hello.waitFor();
});

test('the link of the demo offers its people, also in a new tab, and asks no issuer', async () => {
  const page = await stage.open({}, `${stage.origin}/healthz`);
  const prompts = listenForQuestions(page);
  await page.goto(stage.link);
  await page.getByRole('button', { name: 'Mona, finance manager' }).waitFor();
  const tab = await openTab(page, `${stage.origin}/#/approvals`);
  await tab.getByRole('button', { name: 'Mona, finance manager' }).click();
  await tab.getByRole('tab', { name: 'History' }).waitFor();
  assert.match(tab.url(), /#\/approvals$/);
  assert.deepEqual(prompts, []);
});

test("a tenant's page stays the tenant's page when an issuer for everybody was asked", async () => {
  const page = await stage.open({}, stage.origin);
  await enter(page, 'mila');
  await page.getByRole('heading', { name: 'Hello mila!' }).waitFor();
  const tab = await openTab(page, `${stage.origin}/?tenant=demo#/connections`);
  await signInButton(tab).click();
  await tab.getByRole('article', { name: 'bank' }).waitFor();
  assert.equal(tab.url(), `${stage.origin}/?tenant=demo#/connections`);
  // The next tab knows where this page's user signs in.
  const next = await openTab(page, `${stage.origin}/?tenant=demo`);
  await next.getByRole('heading', { name: 'Hello mila!' }).waitFor();
  assert.equal(new URL(next.url()).search, '?tenant=demo');
});

/** The issuer gives a refresh token with a token that lives so long, in seconds; `answer` says what comes of using it. Notes each use. */
async function giveRefreshToken(page, lifetime, answer) {
  const asked = [];
  let issued;
  await page.route(`${issuer}/token`, async (route) => {
    const grant = new URLSearchParams(route.request().postData() ?? '').get('grant_type');
    if (grant === 'authorization_code') {
      const response = await route.fetch();
      issued = { ...(await response.json()), expires_in: lifetime, refresh_token: 'again' };
      return route.fulfill({ response, json: issued });
    }
    asked.push(grant);
    const { access_token, token_type } = issued;
    return answer(route, { json: { access_token, token_type, expires_in: 3600 }, headers: { 'access-control-allow-origin': '*' } }, asked.length);
  });
  return asked;
}

/** The API knows the token no more, for one request. */
async function refuseToken(page) {
  let isRefused = false;
  await page.route(`${stage.origin}/v1/**`, (route) => {
    if (isRefused || route.request().url().includes('/events')) return route.fallback();
    isRefused = true;
    return route.fulfill({ status: 401, json: { code: 'unauthorized', detail: 'the token has ended' } });
  });
}

const toConnections = (page) => page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Connections' }).click();

test('a token that could not be replaced before its end is asked for again by itself', async () => {
  const page = await stage.open({}, stage.origin);
  const asked = await giveRefreshToken(page, 61, (route, renewed, count) => (count === 1 ? route.abort() : route.fulfill(renewed)));
  await enter(page, 'rita');
  await page.getByRole('heading', { name: 'Hello rita!' }).waitFor();
  const end = Date.now() + 20_000;
  while (asked.length < 2 && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 100));
  assert.deepEqual(asked, ['refresh_token', 'refresh_token']);
  await page.reload();
  await page.getByRole('heading', { name: 'Hello rita!' }).waitFor();
});

test('a token that the API refuses is replaced, and the request is made again', async () => {
  const page = await stage.open({}, stage.origin);
  const asked = await giveRefreshToken(page, 3600, (route, renewed) => route.fulfill(renewed));
  await enter(page, 'sara');
  await page.getByRole('heading', { name: 'Hello sara!' }).waitFor();
  await refuseToken(page);
  await toConnections(page);
  await page.getByRole('article', { name: 'bank' }).waitFor();
  assert.deepEqual(asked, ['refresh_token']);
});

test('a refresh token that is refused is used once, and its user signs in when the token has ended', async () => {
  const page = await stage.open({}, stage.origin);
  const asked = await giveRefreshToken(page, 61, (route, { headers }) => route.fulfill({ status: 400, json: { error: 'invalid_grant' }, headers }));
  await enter(page, 'tom');
  await page.getByRole('heading', { name: 'Hello tom!' }).waitFor();
  // The token is replaced after a second, and another try would come two seconds later.
  await page.waitForTimeout(4000);
  assert.deepEqual(asked, ['refresh_token']);
  await refuseToken(page);
  await toConnections(page);
  await signInButton(page).waitFor();
});
