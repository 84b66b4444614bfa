// What an admin of a tenant does with the page.
import assert from 'node:assert/strict';
import { cpSync, appendFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { ask, check, ROOT, startStage } from './support.mjs';

/** The demo's pack, with a server of the registry in it. */
const REFERENCE = `
mcpServers:
  docs:
    ref: context-store
    config: { context_id: "\${scope.context_id}", region: north }
    toolAccess: { default: public }
`;
const ENTRY = {
  id: 'context-store', name: 'Context store', url: 'http://127.0.0.1:9/mcp', description: 'Keeps context',
  config_schema: {
    context_id: { type: 'string', required: true },
    region: { type: 'string' },
    api_key: { type: 'string', sensitive: true },
  },
  default_config: { context_id: 'default', region: 'south', api_key: 'not-a-real-key' },
};

let [stage, pack, alice] = [];

before(async () => {
  pack = mkdtempSync(join(tmpdir(), 'chatelaine-pack-'));
  cpSync(join(ROOT, 'packs/bank'), pack, { recursive: true });
  appendFileSync(join(pack, 'agent-pack.yaml'), REFERENCE);
  stage = await startStage({ pack });
  await stage.call(await stage.token('admin'), 'POST', '/v1/mcp-servers', ENTRY);
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'what is the rate?');
  await fred.getByText('One euro is').waitFor();
  await fred.context().close();
  alice = await stage.signIn('Alice, admin');
});

after(async () => {
  await stage?.stop();
  rmSync(pack, { recursive: true, force: true });
});

const part = async (name) => {
  await alice.getByRole('link', { name: 'Administration', exact: true }).click();
  await alice.getByRole('navigation', { name: 'Administration' }).getByRole('link', { name }).click();
};

test('an entry is made in the form and in the JSON, and a change in between is shown as a difference', async () => {
  await part('Registry');
  await alice.getByRole('link', { name: 'New entry' }).click();
  await alice.getByLabel('Id', { exact: true }).fill('weather');
  await alice.getByLabel('Name', { exact: true }).fill('Weather');
  await alice.getByLabel('Address', { exact: true }).fill('http://127.0.0.1:9/weather');
  await alice.getByRole('button', { name: 'Add a key' }).click();
  const key = alice.getByRole('group', { name: 'key_1' });
  await key.getByLabel('secret', { exact: true }).check();
  await key.getByLabel('Default').fill('a-hidden-value');
  await alice.getByRole('button', { name: 'Save' }).click();
  await alice.getByText('No agent refers to it.').waitFor();
  const json = alice.getByRole('textbox', { name: 'JSON' });
  assert.match(await json.inputValue(), /••••/);
  assert.ok(!(await alice.content()).includes('a-hidden-value'));
  await json.fill((await json.inputValue()).replace('"name": "Weather"', '"name": "Mine"'));
  assert.equal(await alice.getByLabel('Name', { exact: true }).inputValue(), 'Mine');
  const token = await stage.token('admin');
  const theirs = await stage.call(token, 'GET', '/v1/mcp-servers/weather');
  delete theirs.updated_at;
  await stage.call(token, 'PUT', '/v1/mcp-servers/weather', { ...theirs, description: 'Theirs' });
  await alice.getByRole('button', { name: 'Save', exact: true }).click();
  await alice.getByText('Somebody else has changed this entry').waitFor();
  await alice.locator('del', { hasText: 'Theirs' }).waitFor();
  await alice.locator('ins', { hasText: 'Mine' }).waitFor();
  await check(alice, 'registry-conflict');
  await alice.getByRole('button', { name: 'Save mine over it' }).click();
  await alice.getByText('Somebody else has changed').waitFor({ state: 'detached' });
  assert.equal((await stage.call(token, 'GET', '/v1/mcp-servers/weather')).name, 'Mine');
  await alice.getByRole('button', { name: 'Remove', exact: true }).click();
  await alice.getByRole('alertdialog', { name: 'Remove this entry?' }).getByRole('button', { name: 'Remove' }).click();
  await alice.getByRole('link', { name: 'context-store' }).waitFor();
  assert.equal(await alice.getByRole('link', { name: 'weather' }).count(), 0);
});

test('a secret is written and not shown, and an entry says who uses it', async () => {
  await part('Registry');
  await alice.getByLabel('Name of the secret').fill('store-key');
  await alice.getByLabel('Value').fill('a-hidden-secret');
  await alice.getByRole('button', { name: 'Store' }).click();
  await alice.getByRole('row', { name: /store-key/ }).waitFor();
  assert.ok(!(await alice.content()).includes('a-hidden-secret'));
  await alice.getByRole('link', { name: 'context-store' }).click();
  await alice.getByRole('heading', { name: 'Used by' }).waitFor();
  await alice.getByRole('link', { name: 'bank', exact: true }).waitFor();
});

test('each key of an agent says its value, its level and what it overrides; a dry run says what is missing', async () => {
  await part('Agents');
  const docs = alice.getByRole('article', { name: 'docs' });
  const region = docs.getByRole('row', { name: /region/ });
  await region.getByText('north').waitFor();
  await region.getByText('overrides registry default (south)').waitFor();
  await docs.getByRole('row', { name: /api_key/ }).getByText('••••').waitFor();
  await alice.getByText('Missing: context_id').waitFor();
  await alice.getByLabel('Scope of a run, to try').fill('{"context_id":"c1"}');
  await alice.getByText('Nothing is missing.').waitFor();
  await alice.getByText('Such a run would have these servers:').waitFor();
  await check(alice, 'agent');
});

test('the matrix says why, and so does the page of a user', async () => {
  await part('Roles and tools');
  await alice.getByRole('button', { name: 'send_money, finance: approval' }).click();
  await alice.getByRole('status').getByText('Needs approval by finance-manager, cfo.').waitFor();
  await alice.getByRole('button', { name: 'send_money, employee: denied' }).click();
  await alice.getByRole('status').getByText('Only other roles have it.').waitFor();
  await check(alice, 'access');
  await part('Users');
  await alice.getByRole('link', { name: 'fred' }).click();
  const roles = alice.getByRole('group', { name: 'Roles' });
  await roles.getByText('finance', { exact: true }).waitFor();
  const why = alice.getByRole('region', { name: 'Why can this user not see a tool?' });
  await why.getByRole('searchbox', { name: 'Tool' }).fill('send_money');
  await why.getByRole('row', { name: /send_money/ }).getByText('approval', { exact: true }).waitFor();
  assert.equal(await why.getByRole('row').count(), 2);
  const usage = alice.getByRole('region', { name: 'Tokens by day' });
  await usage.locator('.recharts-bar-rectangle path').first().waitFor();
  await usage.getByText('The days as a table').click();
  const used = await usage.getByRole('row').last().getByRole('cell').allTextContents();
  assert.equal(used[1], '1', 'the runs of today');
  await check(alice, 'user');
});

test('rules are tried with examples before they are in force, and what is not kept is said', async () => {
  await part('Policies');
  await alice.getByRole('combobox', { name: /^Agent/ }).selectOption('bank');
  await alice.getByRole('combobox', { name: /^Server/ }).selectOption('bank');
  await alice.getByLabel('Rules to try').fill(`toolAccess:
  default: users
  approval: [{ tools: [send_money], when: double(args.amount) > 20.0, approvers: [cfo] }]`);
  await alice.getByLabel('Examples').fill(`server: bank
examples:
  - { tool: send_money, args: { amount: "20" }, expect: allow }
  - { tool: send_money, args: { amount: "21" }, expect: allow }`);
  await alice.getByRole('button', { name: 'Try', exact: true }).click();
  const examples = alice.getByRole('group', { name: 'Examples' });
  await examples.getByRole('row', { name: '3 bank send_money made Yes' }).waitFor();
  await examples.getByRole('row', { name: /4 bank send_money waits cfo · approval\[0\] when .* No/ }).waitFor();
  await alice.getByText('No arguments of calls are kept').waitFor();
  await alice.getByLabel('Rules to try').fill('toolAccess: { default: everybody }');
  await alice.getByRole('button', { name: 'Try', exact: true }).click();
  await alice.getByRole('alert').getByText('everybody').waitFor();
});

test('usage is shown by day and by user', async () => {
  await part('Usage');
  await alice.getByRole('rowheader', { name: 'fred · bank' }).waitFor();
  await alice.locator('.recharts-bar-rectangle path').first().waitFor();
  await alice.getByLabel('Show').selectOption('Runs');
  await check(alice, 'usage');
});

test('the trail and the keys: made, shown once, revoked', async () => {
  await part('Audit trail');
  await alice.getByRole('cell', { name: 'tool.call' }).first().waitFor();
  await alice.getByLabel('Who').fill('nobody-at-all');
  await alice.getByRole('button', { name: 'Filter' }).click();
  await alice.getByText('Nothing here.').waitFor();
  await part('Keys');
  await alice.getByLabel('Name').fill('job');
  await alice.getByRole('button', { name: 'Make a key' }).click();
  await alice.getByText(/^chk_[0-9a-f]{12}_[0-9a-f]+$/).waitFor();
  const row = alice.getByRole('row', { name: /job/ });
  await row.getByRole('button', { name: 'Revoke' }).click();
  await alice.getByRole('alertdialog').getByRole('button', { name: 'Revoke' }).click();
  await alice.getByRole('cell', { name: 'revoked' }).waitFor();
});

test('a webhook is tested, and its deliveries are listed', async () => {
  await part('Webhooks');
  await alice.getByLabel('Address').fill('http://127.0.0.1:9/hook');
  await alice.getByRole('button', { name: 'Add' }).click();
  await alice.getByText('Copy the secret now').waitFor();
  const hook = alice.getByRole('article', { name: 'http://127.0.0.1:9/hook' });
  await hook.getByRole('button', { name: 'Test' }).click();
  await hook.getByRole('status').waitFor();
  await hook.getByText('Deliveries').click();
  await check(alice, 'webhooks');
  await hook.getByRole('button', { name: 'Remove' }).click();
  await alice.getByRole('alertdialog').getByRole('button', { name: 'Remove' }).click();
  await hook.waitFor({ state: 'detached' });
});

test('the health of each server is listed, and others have no such pages', async () => {
  await part('Health');
  await alice.getByRole('row', { name: /bank/ }).first().getByText('ready').waitFor();
  await alice.getByRole('heading', { name: 'Replicas' }).waitFor();
  await alice.getByText('Last seen').waitFor();
  await check(alice, 'health');
  const erin = await stage.signIn('Erin, employee');
  await erin.getByRole('button', { name: 'Talk to Bank' }).waitFor();
  assert.equal(await erin.getByRole('link', { name: 'Administration' }).count(), 0);
  await erin.goto(`${stage.origin}/#/admin/users`);
  await erin.getByText('Only administrators of your organisation see this page.').waitFor();
  await check(erin, 'not-an-admin');
});

test('a long list is loaded page after page, each entry once', async () => {
  const token = await stage.token('admin');
  const ids = Array.from({ length: 60 }, (_, at) => `many-${at}`);
  for (const id of ids) await stage.call(token, 'POST', '/v1/mcp-servers', { ...ENTRY, id });
  await alice.reload();
  await part('Registry');
  const links = alice.getByRole('link', { name: /^many-/ });
  await links.nth(40).waitFor();
  assert.ok(await links.count() < ids.length);
  await alice.getByRole('button', { name: 'Show more' }).click();
  await links.nth(59).waitFor();
  assert.deepEqual((await links.allTextContents()).sort(), ids.sort());
});
