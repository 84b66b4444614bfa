// The real program as its demo, a model that answers by rules, and people with a browser each.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { startModel } from './model.mjs';

export const ROOT = join(import.meta.dirname, '../..');
export const AXE = readFileSync(join(import.meta.dirname, '../node_modules/axe-core/axe.min.js'), 'utf8');
export const AXE_OPTIONS = { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] };
/** Pictures of the pages, for people to look at. */
export const SHOTS = join(import.meta.dirname, 'shots');
const PATIENCE = 20_000;
/** Variables with which the demo has no model but its own. */
export const WITHOUT_MODEL = { OPENAI_BASE_URL: '', OPENAI_API_KEY: '', LLM_MODEL: '' };

/** Starts the demo with a pack; `settings` are further variables of its environment. */
export async function startStage({ pack = join(ROOT, 'packs/bank'), settings = {} } = {}) {
  mkdirSync(SHOTS, { recursive: true });
  const folder = mkdtempSync(join(tmpdir(), 'chatelaine-web-'));
  const model = await startModel();
  const demo = spawn(process.env.PROGRAM, ['demo', '--pack', pack], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      PATH: process.env.PATH, HOME: process.env.HOME, CHATELAINE_LOG: 'error',
      CHATELAINE_DATA: folder, CHATELAINE_LISTEN: '127.0.0.1:0',
      OPENAI_BASE_URL: model.url, OPENAI_API_KEY: 'unused', LLM_MODEL: 'rules', ...settings,
    },
  });
  const link = await new Promise((resolve, reject) => {
    let printed = '';
    demo.stdout.on('data', (piece) => {
      printed += piece;
      const found = /http:\S+#demo=[0-9a-f]+/.exec(printed)?.[0];
      if (found) resolve(found);
    });
    demo.on('exit', (code) => reject(new Error(`the demo ended at its start: ${code}`)));
  });
  return new Stage(folder, model, demo, link, await openBrowser());
}

/** The words of a language. A value in them is the name of the agent. */
export function wordsOf(locale) {
  const words = JSON.parse(readFileSync(join(ROOT, `web/src/texts/${locale}.json`), 'utf8'));
  return (key) => (words[key] ?? key).replace(/\{\w+\}/, 'Bank');
}

export function chromiumPath() {
  return process.env.CHROMIUM ?? execFileSync('sh', ['-c', 'command -v chromium || command -v chromium-browser'], { encoding: 'utf8' }).trim();
}

export const openBrowser = () => chromium.launch({ executablePath: chromiumPath(), args: process.getuid() === 0 ? ['--no-sandbox'] : [] });

class Stage {
  /** What a page complained of; no test leaves any. */
  complaints = [];

  constructor(folder, model, demo, link, browser) {
    Object.assign(this, { folder, model, demo, link, browser });
    this.origin = new URL(link).origin;
  }

  async stop() {
    await this.browser.close();
    this.demo.kill('SIGTERM');
    await new Promise((resolve) => (this.demo.exitCode === null ? this.demo.on('exit', resolve) : resolve()));
    this.model.server.close();
    this.model.server.closeAllConnections();
    rmSync(this.folder, { recursive: true, force: true });
    assert.deepEqual(this.complaints, []);
  }

  async closePages() {
    const contexts = this.browser.contexts();
    // Answers that a test changes on their way may still be on it.
    await Promise.all(contexts.flatMap((context) => context.pages()).map((page) => page.unrouteAll({ behavior: 'ignoreErrors' })));
    await Promise.all(contexts.map((context) => context.close()));
  }

  /** A browser of its own with the demo's link open. */
  async open({ hasGuide = false, ...options } = {}, address = this.link) {
    const context = await this.browser.newContext({ viewport: { width: 1200, height: 800 }, locale: 'en', ...options });
    context.setDefaultTimeout(PATIENCE);
    await context.addInitScript(() => document.addEventListener('securitypolicyviolation', ({ violatedDirective, sourceFile }) => console.error(`policy: ${violatedDirective} ${sourceFile}`)));
    // The minute of the demo has tests of its own.
    if (!hasGuide) await context.addInitScript(() => localStorage.setItem('chatelaine.guide.closed', 'yes'));
    const page = await context.newPage();
    page.on('pageerror', (error) => this.complaints.push(error.message));
    page.on('console', (line) => line.type() === 'error' && !line.text().startsWith('Failed to load resource') && this.complaints.push(line.text()));
    await page.goto(address);
    return page;
  }

  async signIn(name, options) {
    const page = await this.open(options);
    await page.getByRole('button', { name }).click();
    return page;
  }

  /** One of the demo's people as a program. */
  async token(person) {
    const key = /#demo=(\w+)/.exec(this.link)[1];
    const people = await fetch(`${this.origin}/v1/demo/people`, { headers: { Authorization: `Bearer ${key}` } });
    return (await people.json()).people[person];
  }

  async call(token, method, path, body, headers = {}) {
    const response = await fetch(`${this.origin}${path}`, {
      method, headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json', ...headers },
      ...(body && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : undefined;
  }
}

export const composer = (page) => page.getByRole('textbox', { name: 'Message', exact: true });

export async function say(page, text) {
  await composer(page).fill(text);
  await composer(page).press('Enter');
}

/** Begins a conversation, and says something. */
export async function ask(page, text) {
  await page.getByRole('button', { name: 'Talk to Bank' }).click();
  await page.getByText('Ask me for exchange rates').waitFor();
  if (text) await say(page, text);
}

/** Waits for what moves or fades in: it has its place and its colours at the end. */
export const settle = (page) =>
  page.evaluate(() => Promise.allSettled(document.getAnimations().filter(({ effect }) => effect.getTiming().iterations !== Infinity).map(({ finished }) => finished)));

/** No violation of WCAG 2.2 AA that axe can see, and a picture. */
export async function check(page, name) {
  await settle(page);
  await page.screenshot({ path: join(SHOTS, `${name}.png`) });
  await page.evaluate(`${AXE};0`).catch(() => page.addScriptTag({ content: AXE }));
  const { violations } = await page.evaluate((options) => globalThis.axe.run(options), AXE_OPTIONS);
  assert.deepEqual(violations.map(({ id, nodes }) => `${name}: ${id}: ${nodes.map((node) => node.html).join(' ')}`), []);
}

/** Nothing is wider than the window, and no table is squeezed. */
export async function checkWidth(page, name) {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(content <= window, `${name} is ${content} wide`);
  const squeezed = await page.evaluate(() => [...document.querySelectorAll('.scrolls')].filter((box) => box.checkVisibility() && box.clientHeight < box.scrollHeight).length);
  assert.equal(squeezed, 0, `${name} has tables whose rows cannot be seen`);
}

/** The page is as high as the window: what is long scrolls inside of it. */
export async function checkHeight(page, name) {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollHeight, document.documentElement.clientHeight]);
  assert.ok(content <= window, `${name} is ${content} high, and the window ${window}`);
}
