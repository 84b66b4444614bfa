// The service with a bank and a model, two tenants, LiteLLM's proxy in front, and wires that can be cut.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startBank } from './bank.mjs';
import { startModel } from './model.mjs';

export const PROXY_KEY = `sk-${'0123456789abcdef'.repeat(4)}`;
const PACK = `
metadata: { id: bank, displayName: Bank, description: Money, defaultLanguage: en }
languages: { en: { systemPrompt: "You are a bank." } }
llm: { provider: openai, model: scripted, baseUrl: "\${MODEL_URL}", apiKey: unused }
flows: { authentication: { rolesAttribute: roles } }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "\${BANK_URL}"
      toolAccess:
        default: none
        roles: { finance: [move_money, lend_cash] }
        approval: [{ tools: [lend_cash], approvers: [cfo] }]
`;

export async function startStage() {
  const folder = mkdtempSync(join(tmpdir(), 'chatelaine-repeats-'));
  mkdirSync(join(folder, 'packs'));
  writeFileSync(join(folder, 'packs/agent-pack.yaml'), PACK);
  const [bank, model] = [await startBank(), await startModel()];
  const [port, proxyPort] = [await freePort(), await freePort()];
  const many = Object.fromEntries(
    ['REQUESTS_PER_MINUTE', 'SSE_PER_USER', 'OPEN_RUNS_PER_USER', 'APPROVALS_PER_USER', 'APPROVALS_PER_TENANT'].map((name) => [`CHATELAINE_${name}`, '10000']),
  );
  const env = {
    PATH: process.env.PATH, HOME: process.env.HOME, CHATELAINE_LOG: 'error', ...many,
    CHATELAINE_RUNS_AT_ONCE: '200', CHATELAINE_RUNS_PER_USER_AT_ONCE: '100', CHATELAINE_RUNS_PER_TENANT_AT_ONCE: '100',
    CHATELAINE_DATA: folder, CHATELAINE_LISTEN: `127.0.0.1:${port}`, CHATELAINE_PACKS: join(folder, 'packs'),
    CHATELAINE_EGRESS_ALLOW: '127.0.0.1', MCP_CONFIG_ENCRYPTION_KEY: 'a1'.repeat(32), MODEL_URL: model.url, BANK_URL: bank.url,
  };
  const stage = new Stage({ folder, bank, model, env, origin: `http://127.0.0.1:${port}` });
  try {
    await stage.setUp(proxyPort);
  } catch (error) {
    await stage.stop();
    throw error;
  }
  return stage;
}

class Stage {
  constructor(parts) {
    Object.assign(this, parts);
  }

  async setUp(proxyPort) {
    await this.startService();
    const run = (...words) => execFileSync(process.env.PROGRAM, words, { env: this.env, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    for (const tenant of ['programs', 'people']) run('tenant', 'add', tenant);
    const claims = JSON.stringify({ roles: ['finance'] });
    const [key] = run('tenant', 'key', 'create', 'programs', 'job', '--claims', claims).split('\n');
    const token = (tenant, user, role) => run('token', '--tenant', tenant, '--user', user, '--role', role).trim();
    this.credentials = { key, token: token('people', 'ann', 'finance') };
    this.approvers = { key: token('programs', 'cleo', 'cfo'), token: token('people', 'cleo', 'cfo') };
    await this.startProxy(proxyPort);
  }

  async startService() {
    this.service = spawn(process.env.PROGRAM, ['serve'], { env: this.env, stdio: ['ignore', 'ignore', 'inherit'] });
    await until(() => fetch(`${this.origin}/readyz`).then(({ ok }) => ok, () => false), 'the service is ready');
  }

  killService() {
    return new Promise((resolve) => this.service.on('exit', resolve).kill('SIGKILL'));
  }

  /** LiteLLM's proxy in its default settings, and with another deployment of the same agent to fall back to. */
  async startProxy(port) {
    const deploy = (name, credential) => ({ model_name: `${name}-${credential}`, litellm_params: { model: 'openai/bank', api_base: `${this.origin}/v1`, api_key: this.credentials[credential] } });
    const config = {
      model_list: Object.keys(this.credentials).flatMap((credential) => ['plain', 'fallback', 'other'].map((name) => deploy(name, credential))),
      general_settings: { master_key: PROXY_KEY },
      router_settings: { fallbacks: Object.keys(this.credentials).map((credential) => ({ [`fallback-${credential}`]: [`other-${credential}`] })) },
    };
    const path = join(this.folder, 'litellm.yaml');
    // JSON is YAML.
    writeFileSync(path, JSON.stringify(config));
    this.proxy = spawn(join(import.meta.dirname, 'litellm/bin/litellm'), ['--config', path, '--host', '127.0.0.1', '--port', String(port)], {
      stdio: process.env.DEBUG ? 'inherit' : 'ignore',
      env: { PATH: process.env.PATH, HOME: this.folder, LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
    });
    this.proxyOrigin = `http://127.0.0.1:${port}`;
    await until(() => fetch(`${this.proxyOrigin}/health/liveliness`).then(({ ok }) => ok, () => false), 'the proxy is ready');
  }

  /** Asks the service itself. */
  async call(token, method, path, body, headers = {}) {
    const answer = await fetch(this.origin + path, {
      method, headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json', ...headers }, ...(body && { body: JSON.stringify(body) }),
    });
    return { status: answer.status, body: await answer.json() };
  }

  /** How often consent was asked for, by the reference of the transfer. */
  async requestsForApproval() {
    const counts = new Map();
    for (const token of Object.values(this.approvers)) {
      let next = '';
      do {
        const { body } = await this.call(token, 'GET', `/v1/approvals?limit=100${next && `&cursor=${next}`}`);
        for (const { id } of body.items) {
          const { reference } = (await this.call(token, 'GET', `/v1/approvals/${id}`)).body.arguments;
          counts.set(reference, (counts.get(reference) ?? 0) + 1);
        }
        next = body.next;
      } while (next);
    }
    return counts;
  }

  async stop() {
    this.proxy?.kill('SIGKILL');
    await this.killService();
    for (const { server } of [this.bank, this.model]) {
      server.close();
      server.closeAllConnections();
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A wire to an origin. `cut` ends every connection there is; later ones hold. */
export async function startWire(origin) {
  const open = new Set();
  const server = createServer((near) => {
    const far = connect(Number(new URL(origin).port), '127.0.0.1');
    for (const [socket, peer] of [[near, far], [far, near]]) {
      open.add(socket);
      socket.pipe(peer).on('error', () => {});
      socket.on('error', () => {}).on('close', () => open.delete(socket) && peer.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const cut = () => open.forEach((socket) => socket.resetAndDestroy());
  return { origin: `http://127.0.0.1:${server.address().port}`, cut, close: () => server.close() && cut() };
}

export async function until(holds, what) {
  const end = Date.now() + 120_000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, `not within two minutes: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
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
