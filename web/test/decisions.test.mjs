// Requests for approval as several people see them at once.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { ask, check, startStage } from './support.mjs';

const DAY = 86_400_000;

let [stage, carl] = [];
before(async () => {
  stage = await startStage();
  const key = { name: 'carl', scopes: ['chat'], claims: { roles: ['cfo'] } };
  carl = (await stage.call(await stage.token('admin'), 'POST', '/v1/admin/keys', key)).key;
});
after(() => stage?.stop());
afterEach(() => stage.closePages());

/** Fred asks for a payment, and Mona sees the request. */
async function request() {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'please pay acme');
  await fred.getByRole('button', { name: 'Take back' }).waitFor();
  const code = await fred.locator('.waiting .code').textContent();
  const mona = await stage.signIn('Mona, finance manager');
  await mona.getByRole('link', { name: /Approvals/ }).click();
  const card = mona.getByRole('article', { name: `${code}: bank send_money` });
  await card.getByRole('button', { name: 'Approve', exact: true }).waitFor();
  return { fred, mona, card, code };
}

/** Decides as another approver, who has no browser. */
async function decide(code, decision) {
  const view = await stage.call(carl, 'GET', `/v1/approvals/${code}`);
  await stage.call(carl, 'POST', `/v1/approvals/${code}/decision`, { decision, id: view.id, args_sha256: view.args_sha256, reason: 'not this week' });
}

test("another approver's decision appears at once, and nothing is left to press", async () => {
  const { mona, card, code } = await request();
  await decide(code, 'reject');
  await card.locator('.state.rejected').waitFor();
  await card.getByText(/rejected by key:carl.*not this week/).waitFor();
  assert.equal(await card.getByRole('button', { name: /Approve|Reject/ }).count(), 0);
  await mona.getByLabel(/waiting for your decision/).waitFor({ state: 'detached' });
  await check(mona, 'decided-by-another');
});

test('a request whose time is over cannot be decided', async () => {
  const { mona, card } = await request();
  await mona.clock.install();
  await mona.reload();
  await card.getByRole('button', { name: 'Approve', exact: true }).waitFor();
  await mona.clock.fastForward(30 * DAY);
  await card.getByText('time is over').waitFor();
  for (const name of ['Approve', 'Reject'])
    assert.ok(await card.getByRole('button', { name, exact: true }).isDisabled(), name);
  await check(mona, 'expired');
});

test('the history is filtered by state, tool and requester', async () => {
  const { mona, code } = await request();
  await decide(code, 'reject');
  await mona.getByRole('tab', { name: 'History' }).click();
  const rows = mona.locator('details.row');
  const row = rows.filter({ hasText: code });
  await row.waitFor();
  const state = mona.getByLabel('State');
  await state.selectOption('taken back');
  await mona.getByText('No requests match these filters.').waitFor();
  await state.selectOption('rejected');
  await row.waitFor();
  await mona.getByLabel('Tool').fill('get_balances');
  await mona.getByText('No requests match these filters.').waitFor();
  await mona.getByLabel('Tool').fill('send_money');
  await row.waitFor();
  await mona.getByLabel('Requester').fill('nobody');
  await mona.getByText('No requests match these filters.').waitFor();
  await mona.getByLabel('Requester').fill('fred');
  await row.waitFor();
  await check(mona, 'history');
});

/** Presses Tab until the element has the focus. */
async function tabTo(page, element) {
  await element.waitFor();
  for (let pressed = 0; pressed < 60; pressed += 1) {
    if (await element.evaluate((node) => node === document.activeElement)) return;
    await page.keyboard.press('Tab');
  }
  throw new Error(`the keyboard does not reach ${element}`);
}

async function press(page, element) {
  await tabTo(page, element);
  await page.keyboard.press('Enter');
}

test('without a mouse a person signs in, asks, and another one approves', async () => {
  const fred = await stage.open();
  await press(fred, fred.getByRole('button', { name: 'Fred, finance' }));
  await press(fred, fred.getByRole('button', { name: 'Talk to Bank' }));
  await fred.getByText('Ask me for exchange rates').waitFor();
  await tabTo(fred, fred.getByRole('textbox', { name: 'Message', exact: true }));
  await fred.keyboard.type('please pay acme');
  await fred.keyboard.press('Enter');
  await fred.getByRole('button', { name: 'Take back' }).waitFor();
  const code = await fred.locator('.waiting .code').textContent();
  const mona = await stage.open();
  await press(mona, mona.getByRole('button', { name: 'Mona, finance manager' }));
  await press(mona, mona.getByRole('link', { name: /Approvals/ }));
  const card = mona.getByRole('article', { name: `${code}: bank send_money` });
  await press(mona, card.getByText('Details'));
  await card.getByText('SHA-256').waitFor();
  await tabTo(mona, card.getByLabel('Reason'));
  await mona.keyboard.type('invoice 7');
  // A card that has just appeared takes no key.
  await card.locator('button:not([aria-disabled]):has-text("Approve")').waitFor();
  await press(mona, card.getByRole('button', { name: 'Approve', exact: true }));
  await card.locator('.state.succeeded').waitFor();
  await press(fred, fred.locator('.tool summary').last());
  await fred.getByText('Arguments', { exact: true }).last().waitFor();
});
