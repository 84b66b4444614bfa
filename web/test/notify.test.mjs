// Who is elsewhere hears of a request: by the browser's notifications, the title, the icon, and as an installed page.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { check, checkWidth, startStage } from './support.mjs';

let [stage, fred, mona] = [];
before(async () => {
  stage = await startStage();
  fred = await stage.token('finance');
  mona = await stage.token('manager');
});
after(() => stage?.stop());
afterEach(async () => {
  await stage.closePages();
  for (const view of (await stage.call(mona, 'GET', '/v1/approvals?decidable=true')).items) await decide(view, 'reject');
});

async function pay(amount) {
  const payment = { arguments: { from_account: 'current', to: 'acme', amount, currency: 'EUR' } };
  return (await stage.call(fred, 'POST', '/v1/agents/bank/skills/pay', payment)).approval;
}

const decide = ({ id, args_sha256 }, decision) => stage.call(mona, 'POST', `/v1/approvals/${id}/decision`, { decision, id, args_sha256 });

/** A browser whose person looks elsewhere, and which keeps what it is told. */
function elsewhere() {
  window.told = [];
  window.askedFor = 0;
  document.hasFocus = () => false;
  window.Notification = class {
    static permission = localStorage.getItem('test.permission') ?? 'default';
    static async requestPermission() {
      window.askedFor += 1;
      this.permission = 'granted';
      localStorage.setItem('test.permission', 'granted');
      return 'granted';
    }
    constructor(title, { body, tag }) {
      Object.assign(this, { title, body, tag });
      window.told.push(this);
    }
    close() {}
  };
}

async function open(name, options) {
  const page = await stage.open(options);
  await page.context().addInitScript(elsewhere);
  await page.reload();
  await page.getByRole('button', { name }).click();
  await page.getByRole('button', { name: 'Account' }).or(page.locator('.top .name')).first().waitFor();
  return page;
}

const toldOf = (page) => page.evaluate(() => window.told.map(({ title, body, tag }) => ({ title, body, tag })));

async function toldAtLast(page, count) {
  await page.waitForFunction((wanted) => window.told.length >= wanted, count);
  return toldOf(page);
}

test('the browser asks when the first request waits and not before, and then tells what it is about', async () => {
  const page = await open('Mona, finance manager');
  const question = page.getByText('A request waits for you.');
  await page.waitForTimeout(2500);
  assert.equal(await question.count(), 0);
  await pay('20.00');
  await question.waitFor();
  assert.equal(await page.evaluate(() => window.askedFor), 0);
  await check(page, 'notify-question');
  await page.getByRole('button', { name: 'Notify me' }).click();
  await question.waitFor({ state: 'detached' });
  assert.equal(await page.evaluate(() => window.askedFor), 1);
  assert.deepEqual(await toldOf(page), []);
  const second = await pay('4999.00');
  const [told] = await toldAtLast(page, 1);
  assert.deepEqual(told, { title: `Fred asks for your approval (${second.code})`, body: 'Send 4,999.00 (4999.00) EUR to acme – needs 2 approvals, 0 so far', tag: second.id });
  await page.evaluate(() => window.told[0].onclick());
  const card = page.getByRole('article', { name: `${second.code}: bank send_money` });
  await card.getByRole('button', { name: 'Approve', exact: true }).waitFor();
  assert.match(page.url(), new RegExp(`#/approvals/${second.id}$`));
  assert.equal(await card.count(), 1);
  await page.reload();
  await card.getByRole('button', { name: 'Approve', exact: true }).waitFor();
  await page.waitForTimeout(2500);
  assert.deepEqual(await toldOf(page), [], 'what waited before is no news');
});

test('who says no is not asked again, and may say yes in the menu', async () => {
  await pay('1.00');
  const page = await open('Mona, finance manager');
  await page.getByRole('button', { name: 'Not now' }).click();
  await page.reload();
  await page.getByLabel('1 waiting for your decision').waitFor();
  assert.equal(await page.getByText('A request waits for you.').count(), 0);
  await page.getByRole('button', { name: 'Mona' }).click();
  await page.getByRole('button', { name: 'Notify me' }).click();
  assert.equal(await page.evaluate(() => window.askedFor), 1);
});

test('who has asked hears of the outcome', async () => {
  const request = await pay('7.00');
  const page = await open('Fred, finance');
  assert.equal(await page.getByText('A request waits for you.').count(), 0, 'nothing waits for Fred');
  await page.evaluate(() => window.Notification.requestPermission());
  await page.waitForTimeout(2500);
  await decide(request, 'reject');
  const [told] = await toldAtLast(page, 1);
  assert.equal(told.title, `${request.code}: rejected`);
  assert.match(told.body, /rejected by/);
});

test('the title and the icon of the tab say how many wait', async () => {
  const page = await open('Mona, finance manager');
  const icon = () => page.evaluate(() => document.querySelector('link[rel=icon]').href);
  assert.match(await icon(), /\/web\/icon-[\w-]+\.svg$/);
  const request = await pay('5.00');
  await page.waitForFunction(() => document.title.startsWith('(1) '));
  assert.match(decodeURIComponent(await icon()), /^data:image\/svg\+xml,.*>1<\/text>/);
  await decide(request, 'reject');
  await page.waitForFunction(() => !document.title.startsWith('('));
  assert.match(await icon(), /\/web\/icon-[\w-]+\.svg$/);
});

test('the page can be installed', async () => {
  const page = await stage.open();
  const session = await page.context().newCDPSession(page);
  const { url, errors, data } = await session.send('Page.getAppManifest');
  assert.match(url, /\/web\/manifest-[\w-]+\.webmanifest$/);
  assert.deepEqual(errors, []);
  const { icons, name, display } = JSON.parse(data);
  assert.deepEqual([name, display], ['Chatelaine', 'standalone']);
  for (const { src } of icons) {
    const answer = await fetch(`${stage.origin}${src}`);
    assert.equal(answer.status, 200, src);
    assert.match(answer.headers.get('content-type'), /^image\/(svg\+xml|png)$/);
  }
  const { installabilityErrors } = await session.send('Page.getInstallabilityErrors');
  // A window without a profile of its own installs nothing, whatever the page is.
  assert.deepEqual(installabilityErrors.map(({ errorId }) => errorId).filter((id) => id !== 'in-incognito'), []);
});

test('a link to the one request that waits does not say that nothing waits', async () => {
  const request = await pay('2.00');
  const page = await stage.signIn('Mona, finance manager', { viewport: { width: 360, height: 740 }, colorScheme: 'dark' });
  await page.goto(`${stage.origin}/#/approvals/${request.id}`);
  await page.getByRole('button', { name: 'Approve', exact: true }).waitFor();
  await page.getByText('Nothing else waits for your decision.').waitFor();
  assert.equal(await page.getByRole('article', { name: `${request.code}: bank send_money` }).count(), 1);
  await check(page, 'request-link');
  await checkWidth(page, 'request-link');
});
