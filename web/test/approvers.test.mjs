// Approvers hear where they chat of what waits for them: two in a browser, one in a terminal, one behind an OpenAI client.
// Each decides in their own way, the others see that it is decided, and who approved is told how the call ended.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { check, checkWidth, ROOT, startStage, wordsOf } from './support.mjs';

const PATIENCE = 20_000;
/** What has been shown for less than this is not seen. */
const SEEN = 1100;

let [stage, fred] = [];
before(async () => {
  stage = await startStage();
  fred = await stage.token('finance');
});
after(() => stage?.stop());
afterEach(() => stage.closePages());

/** What the program itself says in a conversation in a language; its values are filled in. */
function textsOf(locale) {
  const texts = readFileSync(join(ROOT, `locales/${locale}.toml`), 'utf8');
  return (key, values) => {
    const text = new RegExp(`^${key} = "(.*)"$`, 'm').exec(texts)[1].replace(/^\p{Extended_Pictographic}\uFE0F?\s*/u, '');
    return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  };
}

/** A token of a person who may approve. */
const tokenOf = (name, ...more) => execFileSync(
  process.env.PROGRAM, ['token', '--user', name, '--name', name, '--role', 'finance-manager', ...more],
  { env: { PATH: process.env.PATH, HOME: process.env.HOME, CHATELAINE_DATA: stage.folder, CHATELAINE_LOG: 'error' }, encoding: 'utf8' },
).trim();

/** Asks for a payment as a program of Fred's; the request. */
async function pay(amount) {
  const payment = { arguments: { from_account: 'current', to: 'acme', amount, currency: 'EUR' } };
  return (await stage.call(fred, 'POST', '/v1/agents/bank/skills/pay', payment)).approval;
}

async function eventually(what, isSo) {
  for (const end = Date.now() + PATIENCE; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 50))) if (await isSo()) return;
  assert.fail(`${what} did not come to be`);
}

const pause = () => new Promise((resolve) => setTimeout(resolve, SEEN));

/** The page in both schemes, on a phone and in a wide window. */
async function look(page, name) {
  const before = page.viewportSize();
  for (const colorScheme of ['light', 'dark'])
    for (const width of [360, 1440]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 740 });
      await check(page, `${name}-${colorScheme}-${width}`);
      await checkWidth(page, `${name}-${colorScheme}-${width}`);
    }
  await page.setViewportSize(before);
}

/** An approver in a browser, with a conversation open. */
class Browser {
  constructor(name, page, locale) {
    Object.assign(this, { name, page, say: wordsOf(locale) });
    this.strip = page.locator('.notices');
  }

  static async open(name, locale, options) {
    const page = await stage.open({ locale, ...options }, stage.origin);
    const say = wordsOf(locale);
    await page.getByLabel(say('signin.label'), { exact: true }).fill(tokenOf(name));
    await page.getByRole('button', { name: say('signin'), exact: true }).click();
    await page.getByRole('button', { name: /Bank$/ }).click();
    await page.getByRole('textbox', { name: say('composer.label'), exact: true }).waitFor();
    return new Browser(name, page, locale);
  }

  hears = (text) => this.strip.getByText(text).waitFor();
}

/** An approver at `chatelaine chat`, in the language of the terminal. */
class Terminal {
  shown = '';
  at = 0;

  constructor(name, locale) {
    this.name = name;
    this.child = spawn(process.env.PROGRAM, ['chat', '--agent', 'bank', '--url', stage.origin], {
      stdio: ['pipe', 'pipe', 'inherit'],
      env: {
        PATH: process.env.PATH, HOME: process.env.HOME, CHATELAINE_TOKEN: tokenOf(name), CHATELAINE_CHAT_HISTORY: '/dev/null',
        LANG: `${locale}_XX.UTF-8`,
      },
    });
    this.child.stdout.setEncoding('utf8').on('data', (piece) => (this.shown += piece));
  }

  enter = (line) => this.child.stdin.write(`${line}\n`);

  /** Waits until this is shown, after everything that was waited for before. */
  async hears(text) {
    await eventually(`${text} in ${this.shown}`, () => this.shown.includes(text, this.at));
    this.at = this.shown.indexOf(text, this.at) + text.length;
  }

  async leave() {
    this.child.stdin.end();
    if (this.child.exitCode === null) await new Promise((resolve) => this.child.on('exit', resolve));
  }
}

/** An approver behind an OpenAI client, which keeps the transcript itself. */
class OpenAiClient {
  messages = [];

  constructor(name, locale) {
    Object.assign(this, { name, token: tokenOf(name, '--locale', locale) });
  }

  async ask(content) {
    this.messages.push({ role: 'user', content });
    const answer = await stage.call(this.token, 'POST', '/v1/chat/completions', { model: 'bank', messages: this.messages });
    const { message } = answer.choices[0];
    this.messages.push(message);
    return message.content;
  }

  async hears(text) {
    const said = await this.ask('hello');
    const [head, ...answer] = said.split('\n\n');
    assert.ok(head.includes(text) && answer.at(-1).includes('exchange rates'), said);
    assert.ok(!(await this.ask('hello again')).includes(text), 'once');
  }
}

for (const locale of ['en', 'es', 'fr'])
  test(`each approver hears of a request, decides and is told how it ended: ${locale}`, async (context) => {
    const [say, text] = [wordsOf(locale), textsOf(locale)];
    const called = (name) => `${name}-${locale}`;
    const wide = await Browser.open(called('Wanda'), locale, { viewport: { width: 1440, height: 800 } });
    const narrow = await Browser.open(called('Nina'), locale, { viewport: { width: 360, height: 740 }, colorScheme: 'dark', timezoneId: 'Asia/Tokyo' });
    const terminal = new Terminal(called('Tina'), locale);
    context.after(() => terminal.leave());
    const client = new OpenAiClient(called('Olga'), locale);

    /** How each of them decides. */
    const ways = new Map([
      [wide, async ({ code }) => {
        const { page, strip } = wide;
        await strip.getByRole('link', { name: code }).click();
        const card = page.getByRole('article', { name: `${code}: bank send_money` });
        await card.locator(`button:not([aria-disabled]):has-text("${say('approve')}")`).click();
        await card.getByText(text('APPROVAL_SUCCEEDED', { code, by: wide.name, server: 'bank', tool: 'send_money' })).waitFor();
        await page.goBack();
        await strip.waitFor({ state: 'attached' });
      }],
      [narrow, async ({ code, expires_at: expires }) => {
        const { page } = narrow;
        const composer = page.getByRole('textbox', { name: say('composer.label'), exact: true });
        await composer.fill('/approvals');
        await composer.press('Enter');
        const approve = page.getByRole('button', { name: text('APPROVAL_CHOICE_APPROVE', { code }) });
        await approve.waitFor();
        const until = new Date(expires).toLocaleString(locale, { dateStyle: 'medium', timeStyle: 'short', timeZone: 'Asia/Tokyo' });
        await page.locator('.message.system').last().getByText(until).waitFor();
        await look(page, `approvers-list-${locale}`);
        await pause();
        await approve.click();
        await approve.waitFor({ state: 'detached' });
      }],
      [terminal, async ({ code }) => {
        terminal.enter('/menu');
        await terminal.hears(`(1) ${text('MENU_PENDING_APPROVALS')} – /approvals`);
        terminal.enter('/approvals');
        await terminal.hears(`${text('APPROVAL_CHOICE_APPROVE', { code })} – /approve ${code}`);
        await pause();
        terminal.enter(`/approve ${code}`);
      }],
      [client, async ({ code }) => {
        const list = await client.ask('/approvals');
        assert.ok(list.includes('"amount"') && list.includes(text('APPROVAL_CHOICE_APPROVE', { code })), list);
        await pause();
        const decided = await client.ask(`/approve ${code}`);
        assert.ok(decided.includes(text('APPROVAL_APPROVED', { code, by: client.name, server: 'bank', tool: 'send_money' }).slice(0, -1)), decided);
      }],
    ]);

    let amount = 10;
    for (const [decider, decide] of ways) {
      const request = await pay(`${(amount += 1)}.00`);
      const { code } = request;
      const values = { code, requester: 'Fred', by: decider.name, server: 'bank', tool: 'send_money' };
      const waits = text('APPROVAL_WAITS', values).split('{until}')[0];
      const asks = say('notice.waits').replace('Bank', 'Fred').replace('{agent}', 'bank').replace('{code}', code);
      for (const one of [wide, narrow]) {
        await one.hears(asks);
        await one.hears(`${amount}.00`);
      }
      await terminal.hears(waits);
      await terminal.hears(text('APPROVAL_NOTICE', { ...values, agent: 'bank', request: '' }).trim());
      await client.hears(waits);
      if (decider === wide) await look(wide.page, `approvers-waits-${locale}`);
      await decide(request);
      const ended = text('APPROVAL_SUCCEEDED', values);
      // Who decided on the page of the requests has read it there.
      for (const one of [wide, narrow].filter((other) => other !== decider || other === narrow)) await one.hears(ended);
      await terminal.hears(decider === terminal ? ended : text('APPROVAL_APPROVED', values).slice(0, -1));
      if (decider === client) await client.hears(ended);
      else assert.ok((await client.ask(`/approve ${code}`)).includes(ended), 'it is decided once');
      for (const { strip } of [wide, narrow]) await strip.getByText(asks).waitFor({ state: 'detached' });
    }
    const transfers = await stage.call(fred, 'GET', '/v1/approvals?role=requester&limit=4');
    assert.deepEqual(transfers.items.map(({ state }) => state), Array(4).fill('succeeded'));
    await look(narrow.page, `approvers-ended-${locale}`);
  });

test('several requests are a number, as many as wait now; a notice that is closed stays closed', async () => {
  const mona = await stage.token('manager');
  const reject = ({ id, args_sha256 }) => stage.call(mona, 'POST', `/v1/approvals/${id}/decision`, { decision: 'reject', id, args_sha256 });
  const [first, second] = [await pay('1.00'), await pay('2.00')];
  const wanda = await Browser.open('Wanda', 'en');
  await wanda.hears('2 requests wait for your decision.');
  await reject(first);
  await wanda.hears('1 waiting for your decision');
  const third = await pay('3.00');
  await wanda.hears('Send 3.00 EUR to acme');
  await wanda.hears('2 requests wait for your decision.');
  await wanda.strip.locator('.line', { hasText: '3.00' }).getByRole('button', { name: 'Close' }).click();
  await wanda.strip.getByText('3.00').waitFor({ state: 'detached' });
  await reject(second);
  await wanda.hears('1 waiting for your decision');
  await reject(third);
  await wanda.strip.locator('.line').waitFor({ state: 'detached' });
});
