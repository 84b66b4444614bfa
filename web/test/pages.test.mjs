// Every page in both colour schemes, on a phone and on a desk, in each language: axe finds nothing, and nothing is
// too wide.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ask, check, checkHeight, checkWidth, startStage, wordsOf } from './support.mjs';

const DESK = { width: 1440, height: 900 };
const PHONE = { width: 360, height: 740 };
const WAYS = [
  { name: 'light-desk', locale: 'en', viewport: DESK, colorScheme: 'light' },
  { name: 'dark-desk', locale: 'en', viewport: DESK, colorScheme: 'dark' },
  { name: 'light-phone', locale: 'en', viewport: PHONE, colorScheme: 'light' },
  { name: 'dark-phone', locale: 'en', viewport: PHONE, colorScheme: 'dark' },
  { name: 'es-dark-desk', locale: 'es', viewport: DESK, colorScheme: 'dark' },
  { name: 'es-light-phone', locale: 'es', viewport: PHONE, colorScheme: 'light' },
  { name: 'fr-light-desk', locale: 'fr', viewport: DESK, colorScheme: 'light' },
  { name: 'fr-dark-phone', locale: 'fr', viewport: PHONE, colorScheme: 'dark' },
];
/** Pages of an admin: the address, and the key of a text, or a name, that is there when the page is loaded. */
const PAGES = [
  ['', 'chat.talk'],
  ['connections', 'connection.shared'],
  ['admin/users', 'fred'],
  ['admin/users/fred', 'get_exchange_rate'],
  ['admin/access', 'send_money'],
  ['admin/policies', 'policies.try'],
  ['admin/servers', 'server.new'],
  ['admin/servers/+', 'server.key.add'],
  ['admin/changed', 'changed.none'],
  ['admin/agents', 'agents.none'],
  ['admin/capabilities', 'capabilities.none'],
  ['admin/usage', 'usage.table'],
  ['admin/limits', 'limits.used'],
  ['admin/audit', 'tool.call'],
  ['admin/keys', 'key.make'],
  ['admin/webhooks', 'webhooks.none'],
  ['admin/health', 'health.replicas'],
];

let [stage, conversation, connectPage] = [];

/** A page for a credential, as a client gets it that keeps what is typed. */
async function askForPage() {
  const token = await stage.token('finance');
  const messages = [];
  for (const content of ['/connect', 'notes']) {
    messages.push({ role: 'user', content });
    const { choices } = await stage.call(token, 'POST', '/v1/chat/completions', { model: 'bank', messages });
    messages.push(choices[0].message);
  }
  return new URL(/http\S+\/connect\/\S+/.exec(messages.at(-1).content)[0]).pathname;
}
before(async () => {
  stage = await startStage();
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'show a table');
  await fred.getByText('savings').waitFor();
  await fred.getByRole('textbox', { name: 'Message', exact: true }).fill('what is the rate?');
  await fred.keyboard.press('Enter');
  await fred.getByText('One euro is').waitFor();
  await fred.getByRole('textbox', { name: 'Message', exact: true }).fill('please pay acme');
  await fred.keyboard.press('Enter');
  await fred.getByRole('button', { name: 'Take back' }).waitFor();
  conversation = new URL(fred.url()).hash;
  connectPage = await askForPage();
  await fred.context().close();
});
after(() => stage?.stop());

for (const { name, ...way } of WAYS) {
  test(`pages: ${name}`, async () => {
    const word = wordsOf(way.locale);
    const alice = await stage.open(way);
    await alice.getByRole('button', { name: word('person.admin') }).waitFor();
    await check(alice, `${name}-sign-in`);
    await alice.getByRole('button', { name: word('person.admin') }).click();
    for (const [address, text] of PAGES) {
      await alice.goto(`${stage.origin}/#/${address}`);
      await alice.getByText(word(text)).first().waitFor();
      await alice.locator('.loading').first().waitFor({ state: 'detached' });
      const shot = `${name}-${address.replaceAll(/\W+/g, '-') || 'start'}`;
      await check(alice, shot);
      await checkWidth(alice, shot);
    }
    await alice.goto(`${stage.origin}/#/admin/users/fred`);
    await alice.getByRole('button', { name: word('signout') }).click();
    await alice.getByRole('alertdialog').waitFor();
    await check(alice, `${name}-question`);
    await alice.context().close();
    const mona = await stage.signIn(word('person.manager'), way);
    await mona.goto(`${stage.origin}/#/approvals`);
    await mona.getByRole('button', { name: word('approve'), exact: true }).waitFor();
    await check(mona, `${name}-queue`);
    await checkWidth(mona, `${name}-queue`);
    await mona.context().close();
    const fred = await stage.signIn(word('person.finance'), way);
    await fred.getByRole('button', { name: 'Fred' }).click();
    await check(fred, `${name}-account`);
    await fred.keyboard.press('Escape');
    await fred.goto(`${stage.origin}/#/approvals`);
    await fred.getByText(word('approvals.waiting.none')).waitFor();
    await check(fred, `${name}-empty-queue`);
    await fred.goto(`${stage.origin}/${conversation}`);
    await fred.getByRole('button', { name: word('approval.cancel') }).waitFor();
    await check(fred, `${name}-chat`);
    await checkWidth(fred, `${name}-chat`);
    await checkHeight(fred, `${name}-chat`);
    await fred.getByRole('button', { name: word('chat.more') }).click();
    await check(fred, `${name}-chat-menu`);
    await fred.goto(`${stage.origin}${connectPage}`);
    await fred.locator('input[type=password]').waitFor();
    await fred.getByText('/connect').first().waitFor();
    await check(fred, `${name}-connect`);
    await checkWidth(fred, `${name}-connect`);
    await fred.goto(`${stage.origin}/connect/nothing`);
    await fred.locator('input').waitFor({ state: 'detached' });
    await fred.getByText('/connect').first().waitFor();
    await check(fred, `${name}-connect-gone`);
    await fred.context().close();
  });
}

// Every test fails for what the browser's console complains of; this is a complaint, too.
test('what the policy of a page forbids is noticed', async () => {
  const page = await stage.open();
  await page.getByRole('button', { name: 'Alice, admin' }).waitFor();
  const complained = page.waitForEvent('console', (line) => line.text().startsWith('policy:'));
  await page.evaluate(() => document.head.append(Object.assign(document.createElement('style'), { textContent: 'p { color: red }' })));
  await complained;
  const isMine = (text) => text.includes('style-src');
  assert.ok(stage.complaints.some(isMine));
  stage.complaints = stage.complaints.filter((text) => !isMine(text));
});
