// The smallest complete frontend, docs/frontends/smallest.html, on an origin of its own: what it shows and sends. And the
// examples of parts in docs/frontends.md, which are those of the service.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { ROOT, startStage } from './support.mjs';

let [stage, site, pack] = [];
before(async () => {
  pack = mkdtempSync(join(tmpdir(), 'chatelaine-pack-'));
  cpSync(join(ROOT, 'packs/bank'), pack, { recursive: true });
  const file = join(pack, 'agent-pack.yaml');
  const text = readFileSync(file, 'utf8');
  const asks = text.replace('        approval:', '        confirm: [{ tools: [get_balances] }]\n        approval:');
  assert.notEqual(asks, text);
  writeFileSync(file, asks);
  const page = readFileSync(join(ROOT, 'docs/frontends/smallest.html'));
  const server = http.createServer((_, response) => response.setHeader('content-type', 'text/html').end(page));
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  site = { server, origin: `http://127.0.0.1:${server.address().port}` };
  stage = await startStage({ pack, settings: { CHATELAINE_CORS_ORIGINS: site.origin } });
});
after(async () => {
  await stage?.stop();
  site?.server.close();
  rmSync(pack, { recursive: true, force: true });
});
afterEach(() => stage.closePages());

async function signIn(person) {
  return enter(await stage.open({}, site.origin), await stage.token(person));
}

async function enter(page, token) {
  await page.getByLabel('Service').fill(stage.origin);
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  return page;
}

/** Begins a conversation. The page is loaded anew for it. */
async function begin(page) {
  await page.getByRole('button', { name: 'Talk to Bank' }).click();
  await page.getByText('Ask me for exchange rates').waitFor();
  return page;
}

async function say(page, text) {
  await page.getByLabel('Message').fill(text);
  await page.getByRole('button', { name: 'Send' }).click();
}

const messages = (page) => page.locator('#messages');
const state = (page, text) => page.locator('#state', { hasText: text }).waitFor();

/** The token of the demo's notes that belongs to a person. */
const ownToken = (name) => Object.keys(JSON.parse(readFileSync(join(stage.folder, 'notes-tokens.json'), 'utf8'))).find((token) => token.includes(name));

test('a wrong token shows the error of the service, and a right one signs in until the tab is closed', async () => {
  const page = await enter(await stage.open({}, site.origin), 'wrong');
  await page.getByRole('alert').getByText('the credential is neither').waitFor();
  assert.equal(await page.locator('main').isVisible(), false);
  await enter(page, await stage.token('finance'));
  await page.getByText('Fred', { exact: true }).waitFor();
  assert.equal(await page.getByRole('alert').textContent(), '');
  assert.equal(await page.evaluate(() => document.cookie + Object.keys(localStorage).filter((key) => !key.startsWith('chatelaine.guide'))), '');
  await page.reload();
  await page.getByText('Fred', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('button', { name: 'Sign in' }).waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

test('an answer is streamed, its call is a card, and a conversation is opened again from the list', async () => {
  const page = await begin(await signIn('employee'));
  await say(page, 'What is the rate?');
  await state(page, 'succeeded');
  const card = page.locator('details');
  await card.getByText('bank get_exchange_rate: succeeded').click();
  for (const text of ['{"from":"EUR","to":"USD"}', '"rate":"1.085000"']) await card.getByText(text).waitFor();
  await messages(page).getByText('One euro is **1.085000** dollars.').waitFor();
  await say(page, 'something long');
  await page.locator('#draft', { hasText: 'word word' }).waitFor();
  assert.equal(await messages(page).getByText('word word').count(), 0, 'the answer is still coming');
  await page.getByRole('button', { name: 'Stop' }).click();
  await state(page, 'cancelled');
  const shown = await messages(page).innerText();
  await page.getByRole('button', { name: 'Talk to Bank' }).click();
  await page.locator('#messages p').nth(1).waitFor({ state: 'detached' });
  await page.getByRole('link', { name: /rate/i }).click();
  await messages(page).getByText('word word').waitFor();
  await messages(page).getByText('bank get_exchange_rate: succeeded').click();
  assert.equal(await messages(page).innerText(), shown);
});

test('Stop ends an answer, and keeps once what was written', async () => {
  const page = await begin(await signIn('employee'));
  await say(page, 'something long');
  await page.locator('#draft', { hasText: 'word word' }).waitFor();
  await page.getByRole('button', { name: 'Stop' }).click();
  await state(page, 'cancelled');
  assert.equal(await messages(page).getByText('word word').count(), 1);
  assert.equal(await page.locator('#draft').textContent(), '');
});

test('an error is shown once', async () => {
  const page = await begin(await signIn('employee'));
  await say(page, 'be silent');
  await state(page, 'failed');
  assert.equal(await page.getByText('the model gave an empty answer').count(), 1);
});

test('what a server says is text', async () => {
  const page = await begin(await signIn('employee'));
  const image = '<img src=x>';
  await say(page, `/call bank get_exchange_rate {"from":"${image}","to":"USD"}`);
  await page.getByRole('heading', { name: image }).waitFor();
  await page.getByRole('link', { name: image }).waitFor();
  await messages(page).locator('summary').click();
  await messages(page).locator('pre', { hasText: image }).first().waitFor();
  await say(page, 'show a table');
  await messages(page).getByText('<img src=x onerror').waitFor();
  await state(page, 'succeeded');
  assert.equal(await page.locator('img').count(), 0);
});

test('a payment waits, and the manager who approves it has seen every argument for a second', async () => {
  const fred = await begin(await signIn('finance'));
  const mona = await signIn('manager');
  await say(fred, 'please pay acme');
  const card = mona.getByRole('article');
  const approve = card.getByRole('button', { name: 'Approve' });
  await approve.waitFor();
  const appeared = Date.now();
  assert.ok(await approve.isDisabled());
  await card.getByRole('heading', { name: 'Send 12.50 EUR to acme' }).waitFor();
  for (const [name, value] of Object.entries({ amount: '12.50', currency: 'EUR', from_account: 'current', to: 'acme' })) await card.getByText(`${name}: "${value}"`, { exact: true }).waitFor();
  await card.getByText('Fred asks. Decided by finance-manager, cfo: 0 of 1 approved. The next approval sends the call.').waitFor();
  await fred.locator('details', { hasText: 'awaiting_approval' }).waitFor();
  const sent = mona.waitForRequest((request) => request.url().endsWith('/decision'));
  await approve.click();
  assert.ok(Date.now() - appeared > 900, 'the button took no click for a second');
  const { decision, id, args_sha256 } = (await sent).postDataJSON();
  assert.equal(decision, 'approve');
  assert.match(args_sha256, /^[0-9a-f]{64}$/);
  assert.equal(args_sha256, (await stage.call(await stage.token('finance'), 'GET', `/v1/approvals/${id}`)).args_sha256);
  await card.waitFor({ state: 'detached' });
  await messages(fred).getByText('bank send_money was approved by Mona and carried out').waitFor();
});

test('a request with other arguments than those that were shown is not approved', async () => {
  const fred = await begin(await signIn('finance'));
  const mona = await signIn('manager');
  await mona.route('**/v1/approvals/*', async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: { ...(await answer.json()), args_sha256: '0'.repeat(64) } });
  });
  await say(fred, 'please pay acme');
  await mona.getByRole('button', { name: 'Approve' }).click();
  await mona.getByRole('alert').getByText(/arguments/).waitFor();
  await mona.unrouteAll({ behavior: 'wait' });
  await mona.reload();
  await mona.getByRole('button', { name: 'Reject' }).click();
  await messages(fred).getByText('was rejected by Mona').waitFor();
});

test('a person is asked about a call of their own', async () => {
  const page = await begin(await signIn('employee'));
  await say(page, 'my balances');
  const card = page.getByRole('article');
  await card.getByText('You decide about your own call.').waitFor();
  await card.getByRole('button', { name: 'Approve' }).click();
  await card.waitFor({ state: 'detached' });
  await messages(page).getByText(/bank get_balances was (made|carried out|confirmed)|✅/).waitFor();
});

test('buttons choose a server, its token is typed into a masked field, and stands nowhere', async () => {
  const page = await begin(await signIn('finance'));
  await say(page, '/connect');
  await page.getByRole('button', { name: /^⚠️ notes/ }).click();
  const field = messages(page).getByLabel('Your token for the notes?');
  assert.equal(await field.getAttribute('type'), 'password');
  assert.ok(await page.getByRole('button', { name: /^⚠️ notes/ }).isDisabled(), 'the choice is made');
  await field.fill(ownToken('fred'));
  await messages(page).getByRole('button', { name: 'OK' }).click();
  await page.getByText('✅ notes is connected').waitFor();
  assert.ok(await field.isDisabled(), 'the question is over');
  await page.getByRole('button', { name: /^Connect notes: (configured|ready)/ }).waitFor();
  await page.reload();
  await page.getByText('✅ notes is connected').waitFor();
  assert.equal(await field.count(), 0, 'a history draws no field for it');
  assert.ok(!(await page.content()).includes(ownToken('fred')));
});

test('a form connects a server without a word in the chat; a token that does not work is an error', async () => {
  const page = await begin(await signIn('employee'));
  await page.getByRole('button', { name: /^Connect notes: not_configured/ }).click();
  const field = page.locator('#entry').getByLabel('Your token for the notes?');
  assert.equal(await field.getAttribute('type'), 'password');
  await field.fill('notes-wrong-0123456789abcdef0123456789abcdef');
  await page.getByRole('button', { name: 'OK' }).click();
  await page.getByRole('alert').getByText(/does not accept|unauthorized/).waitFor();
  await field.fill(ownToken('erin'));
  await page.getByRole('button', { name: 'OK' }).click();
  await page.getByRole('button', { name: /^Connect notes: (configured|ready)/ }).waitFor();
  assert.equal(await page.locator('#messages p').count(), 1);
});

test('a select is offered where a command lacks a value', async () => {
  const page = await begin(await signIn('employee'));
  await say(page, '/rate EUR money');
  await messages(page).getByRole('combobox', { name: 'to' }).selectOption('USD');
  await messages(page).getByRole('button', { name: 'OK' }).click();
  await messages(page).locator('details', { hasText: 'succeeded' }).waitFor();
});

test('a stream that ends goes on behind its last event, and nothing is shown twice or lost', async () => {
  const page = await signIn('employee');
  const [token, asked] = [await stage.token('employee'), []];
  // The first stream begins late, and ends after two events: the question and the call.
  await page.route('**/v1/conversations/*/events', async (route) => {
    const request = route.request();
    asked.push(request.headers()['last-event-id']);
    if (asked.length > 1) return route.continue();
    const headers = { 'content-type': 'text/event-stream', 'access-control-allow-origin': '*' };
    return route.fulfill({ headers, body: await readEvents(request.url(), token, 2) });
  });
  await begin(page);
  await say(page, 'What is the rate?');
  await messages(page).getByText('One euro is **1.085000** dollars.').waitFor();
  await state(page, 'succeeded');
  assert.deepEqual(asked, ['1', '3']);
  assert.deepEqual(await page.locator('#messages > *').evaluateAll((elements) => elements.map(({ tagName }) => tagName)), ['P', 'P', 'DETAILS', 'P']);
});

/** The durable events behind the greeting, once there are so many. */
async function readEvents(address, token, count) {
  const leave = new globalThis.AbortController();
  const { body } = await fetch(`${address}?after=1`, { headers: { Authorization: `Bearer ${token}` }, signal: leave.signal });
  let text = '';
  for await (const piece of body.pipeThrough(new globalThis.TextDecoderStream())) {
    text += piece;
    const events = text.split('\n\n').slice(0, -1).filter((event) => event.startsWith('id: '));
    if (events.length < count) continue;
    leave.abort();
    return events.slice(0, count).map((event) => `${event}\n\n`).join('');
  }
  throw new Error(`the stream ended: ${text}`);
}

test('the examples of parts in the document have the fields that the service sends', async () => {
  const page = readFileSync(join(ROOT, 'docs/frontends.md'), 'utf8').split('\n## Parts of a message')[1].split('\n## ')[0];
  const examples = [...page.matchAll(/^```json\n(.*?)^```$/gms)].flatMap(([, json]) => JSON.parse(json)).filter(({ type }) => type);
  const token = await stage.token('finance');
  const call = (...request) => stage.call(token, ...request);
  const { id } = await call('POST', '/v1/conversations', { agent: 'bank' });
  const path = `/v1/conversations/${id}`;
  const file = await fetch(`${stage.origin}${path}/attachments?name=notes.md`, { method: 'POST', headers: { Authorization: `Bearer ${token}` }, body: '# Notes' });
  const texts = ['What is the rate?', '/connect', 'notes', '/cancel', '/rate EUR money', '/cancel', 'be silent'];
  for (const body of [{ text: 'pay acme', attachments: [(await file.json()).id] }, ...texts.map((text) => ({ text }))]) {
    const { run } = await call('POST', `${path}/messages`, body);
    for (let { status } = run; status === 'queued' || status === 'running';) ({ status } = await call('GET', `/v1/runs/${run.id}`));
  }
  const { items } = await call('GET', `${path}/messages?limit=100`);
  const parts = items.flatMap((message) => message.parts);
  // That it is over stands in a history alone.
  const fields = (part) => `${part.type}: ${Object.keys(part).filter((name) => name !== 'closed').sort()}`;
  const sent = new Set(parts.map(fields));
  assert.deepEqual(examples.map(fields).filter((example) => !sent.has(example)), []);
  assert.deepEqual([...new Set(examples.map(({ type }) => type))].length, 7);
  await call('POST', `/v1/approvals/${parts.find(({ type }) => type === 'approval').id}/cancel`);
});
