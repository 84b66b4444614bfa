// Every page in both colour schemes, on a phone and on a desk: axe finds nothing, and nothing is too wide.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ask, check, checkWidth, startStage } from './support.mjs';

const WAYS = [
  { name: 'light-desk', viewport: { width: 1440, height: 900 }, colorScheme: 'light' },
  { name: 'dark-desk', viewport: { width: 1440, height: 900 }, colorScheme: 'dark' },
  { name: 'light-phone', viewport: { width: 360, height: 740 }, colorScheme: 'light' },
  { name: 'dark-phone', viewport: { width: 360, height: 740 }, colorScheme: 'dark' },
];
/** Pages of an admin: the address, and a text that is there when it is loaded. */
const PAGES = [
  ['', 'Talk to Bank'],
  ['approvals', 'Nothing waits for your decision.'],
  ['connections', 'Shared by all users'],
  ['admin/users', 'fred'],
  ['admin/users/fred', 'get_exchange_rate'],
  ['admin/access', 'send_money'],
  ['admin/servers', 'New entry'],
  ['admin/servers/+', 'Add a key'],
  ['admin/agents', 'takes no servers from the registry'],
  ['admin/usage', 'The days as a table'],
  ['admin/limits', 'Used today'],
  ['admin/audit', 'tool.call'],
  ['admin/keys', 'Make a key'],
  ['admin/webhooks', 'No webhooks yet.'],
  ['admin/health', 'Replicas'],
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
    const alice = await stage.open(way);
    await alice.getByRole('button', { name: 'Alice, admin' }).waitFor();
    await check(alice, `${name}-sign-in`);
    await alice.getByRole('button', { name: 'Alice, admin' }).click();
    for (const [address, text] of PAGES) {
      await alice.goto(`${stage.origin}/#/${address}`);
      await alice.getByText(text).first().waitFor();
      await alice.locator('.loading').first().waitFor({ state: 'detached' });
      const shot = `${name}-${address.replaceAll(/\W+/g, '-') || 'start'}`;
      await check(alice, shot);
      await checkWidth(alice, shot);
    }
    await alice.goto(`${stage.origin}/#/admin/users/fred`);
    await alice.getByRole('button', { name: 'Sign out' }).click();
    await alice.getByRole('alertdialog').waitFor();
    await check(alice, `${name}-question`);
    await alice.context().close();
    const mona = await stage.signIn('Mona, finance manager', way);
    await mona.goto(`${stage.origin}/#/approvals`);
    await mona.getByRole('button', { name: 'Approve', exact: true }).waitFor();
    await check(mona, `${name}-queue`);
    await mona.context().close();
    const fred = await stage.signIn('Fred, finance', way);
    await fred.getByRole('button', { name: 'Fred' }).click();
    await check(fred, `${name}-account`);
    await fred.keyboard.press('Escape');
    await fred.goto(`${stage.origin}/${conversation}`);
    await fred.getByRole('button', { name: 'Take back' }).waitFor();
    await check(fred, `${name}-chat`);
    await checkWidth(fred, `${name}-chat`);
    await fred.getByRole('button', { name: 'More about this conversation' }).click();
    await check(fred, `${name}-chat-menu`);
    await fred.goto(`${stage.origin}${connectPage}`);
    await fred.getByText('Bank asks for this because you typed /connect').waitFor();
    await check(fred, `${name}-connect`);
    await checkWidth(fred, `${name}-connect`);
    await fred.goto(`${stage.origin}/connect/nothing`);
    await fred.getByText('Type /connect in your chat for a new one.').waitFor();
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
