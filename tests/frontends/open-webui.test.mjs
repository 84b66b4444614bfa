// The real Open WebUI in its default settings, in front of the demo, as people use it in a browser. `make frontends`
// installs it and runs this.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { startStage } from '../../web/test/support.mjs';

/** For a first start of Open WebUI on a busy machine. */
const TIME_LIMIT = 240_000;
const SHOTS = join(import.meta.dirname, 'shots');

let stage, openWebui, folder, origin, key, manager, fred, fredId;

before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  stage = await startStage();
  manager = await stage.token('manager');
  ({ key } = await stage.call(await stage.token('admin'), 'POST', '/v1/admin/keys', {
    name: 'webui', frontend: { preset: 'open-webui', roles: 'X-Groups' }, chat: { tool_calls: 'details' },
  }));
  folder = mkdtempSync(join(tmpdir(), 'open-webui-'));
  const port = await freePort();
  origin = `http://127.0.0.1:${port}`;
  openWebui = spawn(process.env.OPEN_WEBUI, ['serve', '--host', '127.0.0.1', '--port', String(port)], {
    stdio: 'ignore',
    env: {
      PATH: process.env.PATH, HOME: folder, DATA_DIR: folder, WEBUI_SECRET_KEY: 'only for this test',
      // There is nothing else to ask, and nothing to download.
      ENABLE_OLLAMA_API: 'false', HF_HUB_OFFLINE: '1',
      OPENAI_API_BASE_URLS: `${stage.origin}/v1`, OPENAI_API_KEYS: key, ENABLE_FORWARD_USER_INFO_HEADERS: 'true',
      OPENAI_API_CONFIGS: JSON.stringify({ 0: { headers: { 'X-Groups': '{{USER_GROUPS}}', 'X-OpenWebUI-Task': '{{TASK}}' } } }),
    },
  });
  await until(() => fetch(`${origin}/health`).then((answer) => answer.ok, () => false));
  await setUp();
  fred = await signIn('fred');
});

after(async () => {
  openWebui?.kill('SIGKILL');
  await stage?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

test('a first message is answered, with its tool call, a title and follow-up questions', async () => {
  await say(fred, 'What is the rate of the euro?');
  await seen(fred, 'View Result from bank get_exchange_rate');
  await seen(fred, 'One euro is 1.08');
  await seen(fred, 'And the pound?');
  await fred.getByText('Rates of the day').first().waitFor();
  await fred.screenshot({ path: join(SHOTS, 'tool-call.png') });
  // The title, the tags and the follow-ups are no runs.
  assert.equal((await asFred('/v1/runs')).items.length, 1);
});

test('an answer is asked for again, and a question is edited', async () => {
  await fred.getByRole('button', { name: 'Regenerate' }).last().click();
  await fred.getByRole('button', { name: /Try Again/ }).click({ timeout: 5_000 }).catch(() => {});
  await seen(fred, '2/2');
  await fred.getByText('What is the rate of the euro?').last().hover();
  await fred.getByRole('button', { name: 'Edit' }).first().click({ force: true });
  await fred.locator('textarea').first().fill('Show me a table');
  await fred.getByRole('button', { name: 'Send', exact: true }).click();
  await seen(fred, 'savings');
});

test('a payment waits for somebody, and its outcome stands before the next answer', async () => {
  await newChat(fred);
  await say(fred, 'Please pay the bill');
  await seen(fred, 'It waits for approval under the code');
  const { items: [request] } = await stage.call(manager, 'GET', '/v1/approvals?state=pending');
  assert.equal(request.requester.name ?? request.requester, 'fred');
  await stage.call(manager, 'POST', `/v1/approvals/${request.id}/decision`, { decision: 'approve', args_sha256: request.args_sha256 });
  await until(async () => (await stage.call(manager, 'GET', `/v1/approvals/${request.id}`)).state === 'succeeded');
  await say(fred, 'Any news?');
  await seen(fred, request.code);
  await seen(fred, 'was approved').finally(() => fred.screenshot({ path: join(SHOTS, 'approval.png') }));
});

test('Stop stops the run on the server', async () => {
  await newChat(fred);
  await say(fred, 'Tell me a long story');
  await seen(fred, 'word word word');
  await fred.getByRole('button', { name: /Stop/ }).click();
  await until(async () => (await asFred('/v1/runs')).items[0].status === 'cancelled');
});

test('a personal server is connected on a page, and its tools are there at once', async () => {
  await newChat(fred);
  await say(fred, '/connect notes');
  const link = fred.getByRole('link', { name: /\/connect\// }).last();
  await link.waitFor();
  const page = await fred.context().newPage();
  await page.goto(await link.getAttribute('href'));
  const credentials = JSON.parse(readFileSync(join(stage.folder, 'notes-tokens.json'), 'utf8'));
  await page.locator('input[type=password]').fill(Object.keys(credentials).find((name) => name.includes('fred')));
  await page.getByRole('button').click();
  const code = (await page.locator('output').textContent()).trim();
  await page.close();
  await say(fred, code);
  await seen(fred, '✅ notes is connected');
  await say(fred, '/call notes list_notes {}');
  await seen(fred, '"notes"');
});

test('an image reaches the model', async () => {
  await newChat(fred);
  const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==';
  await fred.locator('input[type=file]').first().setInputFiles({ name: 'dot.png', mimeType: 'image/png', buffer: Buffer.from(pixel, 'base64') });
  await say(fred, 'What is in this picture?');
  await seen(fred, 'I see one picture');
});

test('somebody without the group is not offered the tool', async () => {
  await newChat(fred);
  await say(fred, '/tools');
  await seen(fred, 'send_money');
  const mona = await signIn('mona');
  await say(mona, '/tools');
  await seen(mona, 'notes – not configured');
  assert.doesNotMatch(await mona.locator('#messages-container').innerText(), /send_money/);
  await mona.context().close();
});

/** An administrator, two users, one of them in the group `finance`, and an agent that everybody may choose. */
async function setUp() {
  const root = await post('/api/v1/auths/signup', person('root'));
  for (const name of ['fred', 'mona']) {
    const user = await post('/api/v1/auths/add', { ...person(name), role: 'user' }, root.token);
    if (name !== 'fred') continue;
    fredId = user.id;
    const group = await post('/api/v1/groups/create', { name: 'finance', description: '' }, root.token);
    await post(`/api/v1/groups/id/${group.id}/users/add`, { user_ids: [user.id] }, root.token);
  }
  const everybody = { principal_type: 'user', principal_id: '*', permission: 'read' };
  const model = { id: 'bank', base_model_id: null, name: 'Bank', meta: {}, params: {}, access_grants: [everybody], is_active: true };
  await post('/api/v1/models/create', model, root.token);
}

const person = (name) => ({ name, email: `${name}@example.org`, password: `pw-${name}-1` });

/** What the service says to Fred, by the key of Open WebUI. */
const asFred = (path) => stage.call(key, 'GET', path, undefined, { 'X-OpenWebUI-User-Id': fredId, 'X-Groups': 'finance' });

async function post(path, body, token) {
  const headers = { 'Content-Type': 'application/json', ...(token && { Authorization: `Bearer ${token}` }) };
  const answer = await fetch(origin + path, { method: 'POST', headers, body: JSON.stringify(body) });
  assert.ok(answer.ok, `${path}: ${answer.status} ${await answer.clone().text()}`);
  return answer.json();
}

async function signIn(name) {
  const context = await stage.browser.newContext({ viewport: { width: 1280, height: 900 }, locale: 'en-US' });
  context.setDefaultTimeout(TIME_LIMIT / 8);
  const page = await context.newPage();
  await page.goto(origin);
  await page.locator('input[type=email]').fill(person(name).email);
  await page.locator('input[type=password]').fill(person(name).password);
  await page.keyboard.press('Enter');
  await page.locator('#chat-input').waitFor();
  return page;
}

async function newChat(page) {
  await page.goto(origin);
  await page.locator('#chat-input').waitFor();
}

async function say(page, text) {
  await page.locator('#chat-input').click();
  await page.keyboard.type(text);
  await page.locator('#send-message-button').click();
}

const seen = (page, text) => page.locator('#messages-container').getByText(text).last().waitFor();

async function until(holds) {
  const end = Date.now() + TIME_LIMIT;
  while (!(await holds())) {
    assert.ok(Date.now() < end, `not so after ${TIME_LIMIT / 1000} s: ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
