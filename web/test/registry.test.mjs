// The dashboard that the registry document describes, with the document's own four entries: each of its sentences.
import assert from 'node:assert/strict';
import { appendFileSync, cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { check, checkWidth, ROOT, startStage } from './support.mjs';

const CONTEXT_STORE = {
  id: 'context-store', name: 'Context Store', description: 'Document storage for agent context', url: 'http://localhost:9501/mcp',
  config_schema: {
    context_id: { type: 'string', description: 'Context for document isolation', required: true },
    workflow_id: { type: 'string', description: 'Workflow correlation ID', required: false },
    api_key: { type: 'string', description: 'API key for authentication', required: false, sensitive: true },
  },
  default_config: { context_id: 'default', api_key: '${env.CONTEXT_STORE_API_KEY}' },
};
const ATLASSIAN = {
  id: 'atlassian', name: 'Atlassian (Jira + Confluence)', description: 'Access Jira issues and Confluence pages', url: 'http://localhost:9000/mcp',
  config_schema: {
    jira_projects: { type: 'string', description: 'Comma-separated Jira project keys', required: false, example: 'PROJ-A,PROJ-B' },
    confluence_spaces: { type: 'string', description: 'Comma-separated Confluence space keys', required: false, example: 'DEV,DOCS' },
    api_key: { type: 'string', description: 'API key for Atlassian access', required: true, sensitive: true },
  },
  default_config: { api_key: '${env.ATLASSIAN_API_KEY}' },
};
const ORCHESTRATOR = {
  id: 'orchestrator', url: '${runner.orchestrator_mcp_url}',
  config_schema: { run_id: { type: 'string', required: true, internal: true, description: 'Current run ID' } },
};
const NEO4J = { id: 'neo4j', url: 'http://localhost:9003/mcp/', config_schema: { partition: { type: 'string', required: false } } };
/** One key of each type. */
const TYPED = {
  id: 'typed', url: 'http://localhost:9004/mcp',
  config_schema: { word: { type: 'string' }, count: { type: 'number' }, flag: { type: 'boolean' }, filter: { type: 'json' }, token: { type: 'string', sensitive: true } },
};
const CAPABILITY = { mcpServers: { docs: { ref: 'context-store', config: { context_id: 'shared-knowledge' }, toolAccess: { default: 'users' } } } };

let [stage, folder, token] = [];

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'chatelaine-packs-'));
  const pack = join(folder, 'bank');
  cpSync(join(ROOT, 'packs/bank'), pack, { recursive: true });
  appendFileSync(join(pack, 'agent-pack.yaml'), '\ncapabilities: [research-tools]\n');
  mkdirSync(join(folder, 'capabilities'));
  writeFileSync(join(folder, 'capabilities/research-tools.yaml'), JSON.stringify(CAPABILITY));
  stage = await startStage({
    pack,
    settings: {
      CHATELAINE_TENANT_EGRESS_ALLOW: 'localhost', CHATELAINE_REGISTRY_ENV: 'ATLASSIAN_API_KEY@localhost,CONTEXT_STORE_API_KEY@localhost',
      ATLASSIAN_API_KEY: 'sk-not-a-real-key-1', CONTEXT_STORE_API_KEY: 'sk-not-a-real-key-2',
    },
  });
  token = await stage.token('admin');
  for (const entry of [CONTEXT_STORE, ATLASSIAN, ORCHESTRATOR, NEO4J, TYPED]) await stage.call(token, 'POST', '/v1/mcp-servers', entry);
});

after(async () => {
  await stage?.stop();
  rmSync(folder, { recursive: true, force: true });
});
afterEach(() => stage.closePages());

/** Alice, admin, at a part of the administration. */
async function admin(part, options) {
  const page = await stage.signIn(/^Alice/, options);
  await page.goto(`${stage.origin}/#/admin/${part}`);
  return page;
}

/** The form of a server on the page of an agent or a capability. */
const form = (page, server) => page.getByRole('region', { name: `MCP server: ${server}` });
const key = (place, name) => place.getByRole('group', { name, exact: true });
/** What is said at a field. */
const fault = (place, text) => place.getByRole('alert').filter({ hasText: text });

test('List View: table with ID, name, URL, config key count', async () => {
  const page = await admin('servers');
  const table = page.getByRole('group', { name: 'Registry' });
  await table.getByRole('row', { name: /context-store/ }).waitFor();
  assert.deepEqual(await table.getByRole('columnheader').allTextContents(), ['Id', 'Name', 'Address', 'Keys']);
  const rows = await table.getByRole('row').evaluateAll((all) => all.slice(1).map((row) => [...row.children].map((cell) => cell.textContent)));
  assert.deepEqual(rows.sort(), [
    ['atlassian', 'Atlassian (Jira + Confluence)', 'http://localhost:9000/mcp', '3'],
    ['context-store', 'Context Store', 'http://localhost:9501/mcp', '3'],
    ['neo4j', 'neo4j', 'http://localhost:9003/mcp/', '1'],
    ['orchestrator', 'orchestrator', '${runner.orchestrator_mcp_url}', '1'],
    ['typed', 'typed', 'http://localhost:9004/mcp', '5'],
  ]);
  await check(page, 'registry-list');
});

test('Create/Edit Form: ID field (validated, immutable after creation), name, description, URL field (can contain placeholders)', async () => {
  const page = await admin('servers/+');
  await page.getByLabel('Id', { exact: true }).fill('Not An Id');
  await page.getByLabel('Name', { exact: true }).fill('Mine');
  await page.getByLabel('Description', { exact: true }).fill('What it provides');
  await page.getByLabel('Address', { exact: true }).fill('http://localhost:9005/');
  await page.getByLabel('Address', { exact: true }).press('End');
  await page.getByText('Insert a placeholder').first().click();
  await page.getByRole('button', { name: '${scope.name}' }).click();
  await page.keyboard.type('team');
  assert.equal(await page.getByLabel('Address', { exact: true }).inputValue(), 'http://localhost:9005/${scope.team}');
  await page.getByRole('button', { name: 'Save' }).click();
  await fault(page, 'is not the id of an MCP server').first().waitFor();
  await check(page, 'registry-bad-id');
  assert.equal(await page.getByLabel('Description', { exact: true }).inputValue(), 'What it provides');
  await page.getByLabel('Id', { exact: true }).fill('mine');
  await page.getByLabel('Address', { exact: true }).fill('http://localhost:9005/${nonsense.x}');
  await page.getByRole('button', { name: 'Save' }).click();
  await fault(page, 'there is no source "nonsense"').first().waitFor();
  await page.getByLabel('Address', { exact: true }).fill('http://localhost:9005/${scope.team}');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('No agent refers to it.').waitFor();
  assert.equal(await page.getByLabel('Id', { exact: true }).count(), 0);
  assert.equal((await stage.call(token, 'GET', '/v1/mcp-servers/mine')).url, 'http://localhost:9005/${scope.team}');
  await stage.call(token, 'DELETE', '/v1/mcp-servers/mine');
});

test('Config schema editor (add/remove keys with type, description, flags), default config editor', async () => {
  const page = await admin('servers/+');
  await page.getByLabel('Id', { exact: true }).fill('edited');
  await page.getByLabel('Name', { exact: true }).fill('Edited');
  await page.getByLabel('Address', { exact: true }).fill('http://localhost:9006/mcp');
  const add = async (name, type) => {
    await page.getByRole('button', { name: 'Add a key' }).click();
    await page.getByRole('group', { name: /^key_/ }).getByLabel('Key', { exact: true }).fill(name);
    await key(page, name).getByLabel('Type').selectOption(type);
    return key(page, name);
  };
  const projects = await add('projects', 'string');
  await projects.getByLabel('Description').fill('Comma-separated keys');
  await projects.getByLabel('Example').fill('PROJ-A,PROJ-B');
  await projects.getByLabel('required').check();
  const secret = await add('secret', 'string');
  await secret.getByLabel('secret', { exact: true }).check();
  assert.equal(await secret.getByLabel('Default').getAttribute('type'), 'password');
  const run = await add('run_id', 'string');
  await run.getByLabel('internal').check();
  const flag = await add('flag', 'boolean');
  await flag.getByLabel('Default').check();
  const count = await add('count', 'number');
  assert.equal(await count.getByLabel('Default').getAttribute('type'), 'number');
  await count.getByLabel('Default').fill('2.5');
  const filter = await add('filter', 'json');
  await filter.getByLabel('Default').fill('{\n  "a": [1, 2,\n}');
  await fault(filter, 'This is not JSON: line 3, column 1.').first().waitFor();
  await page.getByRole('button', { name: 'Save' }).click();
  assert.equal(await filter.getByLabel('Default').inputValue(), '{\n  "a": [1, 2,\n}');
  await check(page, 'registry-bad-json');
  await filter.getByLabel('Default').fill('{ "a": [1, 2] }');
  const header = await add('mcp-session-id', 'string');
  await page.getByRole('button', { name: 'Save' }).click();
  await fault(page, /header/).first().waitFor();
  assert.ok(await header.evaluate((group) => group.parentElement.textContent.includes('header')), 'it is said at the key');
  await header.getByRole('button', { name: 'Remove mcp-session-id' }).click();
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('No agent refers to it.').waitFor();
  const made = await stage.call(token, 'GET', '/v1/mcp-servers/edited');
  assert.deepEqual(made.config_schema.projects, { type: 'string', description: 'Comma-separated keys', required: true, example: 'PROJ-A,PROJ-B' });
  assert.equal(made.config_schema.run_id.internal, true);
  assert.deepEqual(made.default_config, { flag: true, count: 2.5, filter: { a: [1, 2] } });
  await stage.call(token, 'DELETE', '/v1/mcp-servers/edited');
});

test('what is no JSON as a whole is said with its line and column, and stays', async () => {
  const page = await admin('servers/neo4j');
  const json = page.getByRole('textbox', { name: 'JSON' });
  await json.fill('{\n "id": "neo4j",\n "url" "x"\n}');
  await fault(page, 'This is not JSON: line 3, column 8.').first().waitFor();
  assert.ok(await page.getByRole('button', { name: 'Save' }).isDisabled());
  assert.equal(await json.inputValue(), '{\n "id": "neo4j",\n "url" "x"\n}');
});

test('Agent form: dropdown to select from registry, fields by type, sensitive as password, placeholder helper', async () => {
  const page = await admin('agents/bank');
  const added = page.getByRole('region', { name: 'Add a server of the registry' });
  await added.getByLabel('Server').locator('option', { hasText: 'context-store' }).waitFor({ state: 'attached' });
  const choices = await added.getByLabel('Server').locator('option').allTextContents();
  assert.ok(choices.includes('Context Store (context-store)') && choices.includes('Atlassian (Jira + Confluence) (atlassian)'), String(choices));
  await added.getByLabel('Server').selectOption('typed');
  await added.getByLabel('Name here').fill('typed');
  const set = async (name) => {
    await key(added, name).getByLabel('At this level').selectOption('set');
    return key(added, name).getByLabel('Value');
  };
  const word = await set('word');
  assert.equal(await word.getAttribute('type'), 'text');
  const flag = await set('flag');
  assert.equal(await flag.getAttribute('role'), 'checkbox');
  await flag.check();
  const count = await set('count');
  assert.equal(await count.getAttribute('type'), 'number');
  await count.fill('7');
  const filter = await set('filter');
  await filter.fill('{"a": }');
  await fault(key(added, 'filter'), 'This is not JSON: line 1, column 7.').first().waitFor();
  const hidden = await set('token');
  assert.equal(await hidden.getAttribute('type'), 'password');
  await hidden.fill('a-hidden-token');
  // Only placeholders that an agent may use, each with what it means.
  await key(added, 'word').getByText('Insert a placeholder').click();
  const offered = await key(added, 'word').getByRole('listitem').allTextContents();
  assert.equal(offered.length, 6);
  assert.ok(offered[0].startsWith('${params.name}') && offered[0].includes('which the model sees'), offered[0]);
  await word.fill('${nowhere.x}');
  await added.getByLabel('Who may call its tools').selectOption('users');
  await added.getByRole('button', { name: 'Save' }).click();
  assert.equal(await filter.inputValue(), '{"a": }');
  await filter.fill('{"a": [1]}');
  await added.getByRole('button', { name: 'Save' }).click();
  await fault(added, 'there is no source "nowhere"').first().waitFor();
  await check(page, 'agent-bad-placeholder');
  assert.equal(await count.inputValue(), '7');
  await word.fill('');
  await key(added, 'word').getByRole('button', { name: '${scope.name}' }).click();
  await page.keyboard.type('word');
  await added.getByRole('button', { name: 'Save' }).click();
  await form(page, 'typed').waitFor();
  const stored = await stage.call(token, 'GET', '/v1/admin/agents/bank/servers/typed');
  const { token: kept, ...others } = stored.setting.config;
  assert.deepEqual(others, { word: '${scope.word}', flag: true, count: 7, filter: { a: [1] } });
  assert.match(kept.$secret, /^bank\.typed\.token\./);
  assert.deepEqual(stored.setting.toolAccess, { default: 'users' });
  assert.ok(!(await page.content()).includes('a-hidden-token'));
  await form(page, 'typed').getByText('added here').waitFor();
  await form(page, 'typed').getByRole('button', { name: 'Remove', exact: true }).click();
  await page.getByRole('alertdialog', { name: 'Remove this server here?' }).getByRole('button', { name: 'Remove' }).click();
  await form(page, 'typed').waitFor({ state: 'detached' });
});

test('Capability form, and an agent over it: the chain as the document draws it, a key that is removed, and the explanation', async () => {
  const page = await admin('capabilities/research-tools');
  const docs = form(page, 'docs');
  await key(docs, 'context_id').getByText('↑ Overrides registry default (default)').waitFor();
  await key(docs, 'context_id').getByText('shared-knowledge').waitFor();
  await key(docs, 'api_key').getByText('${env.CONTEXT_STORE_API_KEY}').waitFor();
  await key(docs, 'api_key').getByText('↑ From registry default').waitFor();
  assert.equal(await docs.getByLabel('Who may call its tools').count(), 0, 'the access is the file’s');
  await key(docs, 'context_id').getByLabel('At this level').selectOption('set');
  await key(docs, 'context_id').getByText('Insert a placeholder').click();
  assert.equal(await key(docs, 'context_id').getByRole('button', { name: '${params.name}' }).count(), 0, 'parameters belong to an agent');
  await key(docs, 'context_id').getByLabel('Value').fill('${scope.context_id}');
  await docs.getByRole('button', { name: 'Save' }).click();
  await key(docs, 'context_id').getByText('↑ Overrides capability research-tools (shared-knowledge), registry default (default)').waitFor();
  await check(page, 'capability');
  await page.goto(`${stage.origin}/#/admin/agents/bank`);
  const here = form(page, 'docs');
  await key(here, 'workflow_id').getByLabel('At this level').selectOption('set');
  await key(here, 'workflow_id').getByLabel('Value').fill('${scope.workflow_id}');
  await key(here, 'api_key').getByLabel('At this level').selectOption('removed');
  await here.getByRole('button', { name: 'Save' }).click();
  await key(here, 'api_key').getByText('↑ Removed by an admin for the agent, was registry default (${env.CONTEXT_STORE_API_KEY})').waitFor();
  await check(page, 'agent-chain');
  const explained = page.getByRole('article', { name: 'docs' });
  await explained.getByRole('row', { name: /context_id/ }).getByText('an admin for capability research-tools', { exact: true }).waitFor();
  await page.getByText('Missing: context_id').waitFor();
});

test('a change of somebody else is shown as a difference, and what was typed stays', async () => {
  const page = await admin('agents/bank');
  const docs = form(page, 'docs');
  await key(docs, 'workflow_id').getByLabel('At this level').selectOption('set');
  await key(docs, 'workflow_id').getByLabel('Value').fill('mine');
  await stage.call(token, 'PUT', '/v1/admin/agents/bank/servers/docs', { ref: 'context-store', config: { workflow_id: 'theirs' } });
  await docs.getByRole('button', { name: 'Save' }).click();
  await docs.locator('del', { hasText: 'theirs' }).waitFor();
  assert.equal(await key(docs, 'workflow_id').getByLabel('Value').inputValue(), 'mine');
  await docs.getByRole('button', { name: 'Save mine over it' }).click();
  await docs.locator('del').first().waitFor({ state: 'detached' });
  const stored = await stage.call(token, 'GET', '/v1/admin/agents/bank/servers/docs');
  assert.equal(stored.setting.config.workflow_id, 'mine');
});

for (const [locale, heading] of [['en', 'MCP servers'], ['es', 'Servidores MCP'], ['fr', 'Serveurs MCP']])
  test(`the forms fit a phone and a wide window: ${locale}`, async () => {
    for (const width of [360, 1440]) {
      const page = await admin('agents/bank', { locale, viewport: { width, height: 800 } });
      await page.getByRole('heading', { name: heading, exact: true }).waitFor();
      await page.locator('fieldset.key').first().waitFor();
      await checkWidth(page, `agent-${locale}-${width}`);
      await check(page, `agent-settings-${locale}-${width}`);
      await page.goto(`${stage.origin}/#/admin/servers/atlassian`);
      await page.locator('fieldset.key').first().waitFor();
      await checkWidth(page, `entry-${locale}-${width}`);
      await check(page, `entry-${locale}-${width}`);
      await page.context().close();
    }
  });
