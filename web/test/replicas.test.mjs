// Two replicas behind one address: the one that answers is killed in mid-answer, and the other takes over.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { check, composer, openBrowser, say } from './support.mjs';
import { startModel } from './model.mjs';

const PACK = `
metadata: { id: talk, displayName: Talk, description: Talks, defaultLanguage: en }
languages: { en: { systemPrompt: "You talk." } }
llm: { provider: openai, model: rules, baseUrl: "\${MODEL_URL}", apiKey: unused }
flows: { authentication: { required: true, rolesAttribute: roles } }
`;

let [folder, model, browser, balancer, token] = [];
const replicas = [];

/** One process of the service; it is ready when this returns. */
async function startReplica(environment) {
  const child = spawn(process.env.PROGRAM, ['serve'], { env: environment, stdio: ['ignore', 'inherit', 'inherit'] });
  const port = environment.CHATELAINE_LISTEN.split(':')[1];
  for (;;) {
    const ready = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => null);
    if (ready?.ok) return { child, port: Number(port) };
    assert.equal(child.exitCode, null, 'the replica ended at its start');
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

async function freePort() {
  const probe = net.createServer();
  await new Promise((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** Leads each connection to the first replica that takes it. */
async function startBalancer() {
  const server = net.createServer((client) => {
    const lead = ([first, ...others]) => {
      if (!first) return client.destroy();
      const upstream = net.connect(first.port, '127.0.0.1');
      upstream.once('connect', () => client.pipe(upstream).pipe(client));
      upstream.once('error', () => (upstream.connecting || upstream.bytesWritten === 0 ? lead(others) : client.destroy()));
      upstream.once('close', () => upstream.bytesRead > 0 && client.destroy());
      client.once('close', () => upstream.destroy());
    };
    client.on('error', () => client.destroy());
    lead(replicas.filter(({ child }) => child.exitCode === null && child.signalCode === null));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { server, url: `http://127.0.0.1:${server.address().port}` };
}

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'chatelaine-replicas-'));
  mkdirSync(join(folder, 'packs/talk'), { recursive: true });
  writeFileSync(join(folder, 'packs/talk/agent-pack.yaml'), PACK);
  model = await startModel();
  const environment = async () => ({
    PATH: process.env.PATH, HOME: process.env.HOME, CHATELAINE_LOG: 'error', CHATELAINE_DATA: join(folder, 'data'),
    CHATELAINE_PACKS: join(folder, 'packs'), MODEL_URL: model.url,
    CHATELAINE_LISTEN: `127.0.0.1:${await freePort()}`, CHATELAINE_RUN_LEASE_SECONDS: '2',
    MCP_CONFIG_ENCRYPTION_KEY: '5e'.repeat(32),
  });
  // The first process runs the Postgres that the second one joins; people reach the second one first.
  replicas.unshift(await startReplica(await environment()));
  replicas.unshift(await startReplica(await environment()));
  const program = process.env.PROGRAM;
  const command = async (...words) => execFileSync(program, words, { env: await environment(), encoding: 'utf8' }).trim();
  await command('tenant', 'add', 'demo');
  token = await command('token', '--user', 'rita', '--name', 'Rita');
  balancer = await startBalancer();
  browser = await openBrowser();
});

after(async () => {
  await browser?.close();
  for (const { child } of replicas) {
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await new Promise((resolve) => child.on('exit', resolve));
  }
  balancer?.server.close();
  model?.server.close();
  model?.server.closeAllConnections();
  rmSync(folder, { recursive: true, force: true });
});

test('an answer whose replica is killed comes to its end, once', async () => {
  const page = await (await browser.newContext({ locale: 'en' })).newPage();
  page.setDefaultTimeout(40_000);
  await page.goto(balancer.url);
  await page.getByLabel('Token', { exact: true }).fill(token);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.getByRole('button', { name: 'Talk to Talk' }).click();
  await composer(page).waitFor();
  await say(page, 'something long');
  await page.getByText('word word').waitFor();
  replicas[0].child.kill('SIGKILL');
  await page.getByText('The connection is lost').waitFor();
  await page.getByText('The connection is lost').waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Stop' }).waitFor({ state: 'detached' });
  await check(page, 'after-a-replica');
  assert.equal(await page.locator('.message.user').count(), 1);
  assert.equal(await page.locator('.message.assistant').count(), 1);
  const words = await page.locator('.message.assistant').innerText();
  assert.equal(words.split(/\s+/).filter((word) => word === 'word').length, 400);
});
