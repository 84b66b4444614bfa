// Commands with words behind them: what is clear is called, and the rest is asked for in a form.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { ask, check, checkWidth, composer, say, startStage, wordsOf } from './support.mjs';

let stage;
before(async () => {
  stage = await startStage();
});
after(() => stage?.stop());
afterEach(() => stage.closePages());

/** The arguments of Fred's payments to somebody that wait, once there are so many. */
async function paymentsTo(recipient, count) {
  const token = await stage.token('finance');
  for (;;) {
    const { items } = await stage.call(token, 'GET', '/v1/approvals?role=requester');
    const views = await Promise.all(items.map(({ id }) => stage.call(token, 'GET', `/v1/approvals/${id}`)));
    const found = views.map((view) => view.arguments).filter(({ to }) => to === recipient);
    if (found.length >= count) return found;
  }
}

test('words behind a command make its call', async () => {
  const page = await stage.signIn(/Fred/);
  await ask(page, '/rate EUR USD');
  await page.getByText('1.085').first().waitFor();
  await say(page, '/pay acme 12.50');
  await page.getByText('Send 12.50 EUR to acme').first().waitFor();
  assert.deepEqual(await paymentsTo('acme', 1), [{ to: 'acme', amount: '12.50', currency: 'EUR', from_account: 'current' }]);
});

const WAYS = { en: { viewport: { width: 1440, height: 900 } }, es: { viewport: { width: 360, height: 740 } }, fr: { viewport: { width: 360, height: 740 }, colorScheme: 'dark' } };

for (const [locale, way] of Object.entries(WAYS)) {
  test(`what a command lacks is asked for in a form: ${locale}`, async () => {
    const words = wordsOf(locale);
    const page = await stage.open({ locale, ...way });
    await page.getByRole('button', { name: /Fred/ }).click();
    await page.getByRole('button', { name: words('chat.talk') }).click();
    const field = page.getByRole('textbox', { name: words('composer.label'), exact: true });
    await field.fill('/rate EUR money');
    await field.press('Enter');
    const form = page.locator('form.question');
    await form.getByRole('combobox', { name: 'to' }).selectOption('USD');
    assert.equal(await form.getByRole('button', { name: words('prompt.decline') }).count(), 0, 'no server asks');
    await checkWidth(page, `command-${locale}`);
    await check(page, `command-${locale}`);
    await form.getByRole('button', { name: words('send') }).click();
    await page.getByText('1.085').first().waitFor();
    await field.fill('/pay');
    await field.press('Enter');
    await form.getByRole('textbox', { name: 'to' }).fill('sato');
    await form.getByRole('button', { name: words('send') }).click();
    await form.getByRole('textbox', { name: 'amount' }).fill('2');
    await form.getByRole('button', { name: words('send') }).click();
    await form.waitFor({ state: 'detached' });
    const count = Object.keys(WAYS).indexOf(locale) + 1;
    assert.equal((await paymentsTo('sato', count)).length, count);
  });
}

test('a form is left off, and the next message is one for the agent', async () => {
  const page = await stage.signIn(/Fred/);
  await ask(page, '/pay');
  await page.locator('form.question').getByRole('button', { name: 'Cancel' }).click();
  await page.getByText('The command was left off. Nothing was called.').waitFor();
  assert.equal(await page.locator('form.question').count(), 0);
  assert.ok(await composer(page).isEditable());
});
