// Signing in at an MCP server that takes OAuth, with npm `oidc-provider` as its authorization server.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { copyFileSync, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, afterEach, before, test } from 'node:test';
import { check, ROOT, startStage } from './support.mjs';

let [stage, pack, server] = [];

/** The server of the Rust tests. Beside these packages it finds `oidc-provider`. */
async function startServer() {
  const program = join(ROOT, 'web/node_modules/.oidc.mjs');
  copyFileSync(join(ROOT, 'tests/servers/oidc.mjs'), program);
  const child = spawn(process.execPath, [program], { stdio: ['ignore', 'pipe', 'ignore'] });
  for await (const line of createInterface(child.stdout)) {
    const port = /listening on port (\d+)/.exec(line)?.[1];
    if (port) return { child, url: `http://127.0.0.1:${port}/mcp` };
  }
  throw new Error('the server ended at its start');
}

before(async () => {
  server = await startServer();
  pack = mkdtempSync(join(tmpdir(), 'chatelaine-pack-'));
  cpSync(join(ROOT, 'packs/bank'), pack, { recursive: true });
  const file = join(pack, 'agent-pack.yaml');
  const letters = `
    - name: letters
      transport: streamable-http
      url: ${server.url}
      accessMode: user-controlled
      auth: oauth
      toolAccess: { default: public }
`;
  const [servers, skills] = readFileSync(file, 'utf8').split(/(?=^skills:)/m);
  writeFileSync(file, servers + letters + skills);
  stage = await startStage({ pack });
});

after(async () => {
  await stage?.stop();
  server?.child.kill();
  rmSync(pack, { recursive: true, force: true });
});
afterEach(() => stage.closePages());

test('a person signs in at a server from its card, which then says what the server offers', async () => {
  const fred = await stage.signIn('Fred, finance');
  await fred.getByRole('link', { name: 'Connections' }).first().click();
  const letters = fred.getByRole('article', { name: 'letters' });
  await letters.getByText('not connected').waitFor();
  await letters.getByRole('button', { name: 'Connect' }).click();
  await check(fred, 'server-sign-in');
  const opened = fred.context().waitForEvent('page');
  await letters.getByRole('button', { name: 'Sign in at letters' }).click();
  const tab = await opened;
  await tab.getByRole('heading').waitFor();
  await check(tab, 'server-signed-in');
  assert.equal(new URL(tab.url()).origin, stage.origin);
  await tab.close();
  await letters.getByText('connected', { exact: true }).waitFor();
  await letters.getByText('What it offers').click();
  await letters.getByText('whoami').waitFor();
  await letters.getByRole('button', { name: 'Remove' }).click();
  await fred.getByRole('alertdialog').getByRole('button', { name: 'Remove' }).click();
  await letters.getByText('not connected').waitFor();
});

test('the link of the chat signs in, too, and the chat says that it did', async () => {
  const erin = await stage.signIn('Erin, employee');
  await erin.getByRole('button', { name: 'Talk to Bank' }).click();
  await erin.getByText('Ask me for exchange rates').waitFor();
  await erin.getByRole('textbox', { name: 'Message', exact: true }).fill('/connect');
  await erin.keyboard.press('Enter');
  await erin.getByRole('button', { name: /letters/ }).click();
  const link = erin.getByRole('link', { name: 'Open the sign-in page' });
  const opened = erin.context().waitForEvent('page');
  await link.click();
  const tab = await opened;
  const code = (await tab.locator('output').textContent()).trim();
  await check(erin, 'chat-sign-in');
  await erin.getByLabel('The code that the page shows').fill(code);
  await erin.keyboard.press('Enter');
  await erin.getByText('letters is connected').waitFor();
});
