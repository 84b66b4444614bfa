// What people are asked about a call of their own: exactly what is sent, and their answer.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { ask, check, checkWidth, ROOT, startStage, wordsOf } from './support.mjs';

let [stage, pack, fred] = [];
before(async () => {
  pack = mkdtempSync(join(tmpdir(), 'chatelaine-pack-'));
  cpSync(join(ROOT, 'packs/bank'), pack, { recursive: true });
  const file = join(pack, 'agent-pack.yaml');
  const text = readFileSync(file, 'utf8');
  // Their own user confirms transfers, in place of somebody else.
  const asks = text.replace(/ {8}approval: [^]*?\n\n/, '        confirm: [{ tools: [send_money] }]\n\n');
  assert.notEqual(asks, text);
  writeFileSync(file, asks);
  stage = await startStage({ pack });
  fred = await stage.token('finance');
});
after(async () => {
  await stage?.stop();
  rmSync(pack, { recursive: true, force: true });
});
afterEach(() => stage.closePages());

const settled = (card, name) => card.locator(`button:not([aria-disabled]):has-text("${name}")`).waitFor();

/** Asks for the payment; the question. */
async function question(page, words = wordsOf('en')) {
  await ask(page, 'please pay acme');
  const card = page.locator('.waiting.confirmation');
  await card.getByRole('button', { name: words('confirm'), exact: true }).waitFor();
  return card;
}

test('a person sees exactly what is sent, confirms it with the keyboard, and reads the outcome', async () => {
  const page = await stage.signIn('Fred, finance');
  const card = await question(page);
  await card.getByRole('alert').getByText(/Really send_money at bank/).waitFor();
  for (const value of ['12.50', 'acme', 'current', 'EUR']) await card.getByText(value).first().waitFor();
  await page.locator('.tool').getByText('waits for your answer').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Take back' }).count(), 0);
  await settled(card, 'Confirm');
  await check(page, 'confirm');
  await card.getByRole('button', { name: 'Confirm' }).focus();
  await page.keyboard.press('Enter');
  await page.locator('.tool .state.succeeded').waitFor();
  await card.waitFor({ state: 'detached' });
  assert.equal(await page.evaluate(() => document.activeElement.tagName), 'SUMMARY', 'the focus stays at the call');
  await check(page, 'confirmed');
});

test('what a person declines is not sent, also from the list of requests', async () => {
  const page = await stage.signIn('Fred, finance', { viewport: { width: 390, height: 800 } });
  const card = await question(page);
  await checkWidth(page, 'confirm-phone');
  await settled(card, 'Decline');
  await check(page, 'confirm-phone');
  await card.getByRole('button', { name: 'Decline' }).click();
  await page.locator('.tool .state.rejected').getByText('declined').waitFor();
  const own = await stage.call(fred, 'GET', '/v1/approvals?role=requester&state=rejected');
  assert.equal(own.items[0].kind, 'confirmation');
  const body = { arguments: { from_account: 'current', to: 'acme', amount: '7.00', currency: 'EUR' } };
  const { approval } = await stage.call(fred, 'POST', '/v1/agents/bank/skills/pay', body);
  await page.goto(`${stage.origin}/#/approvals/${approval.id}`);
  const listed = page.getByRole('article', { name: `${approval.code}: bank send_money` });
  await settled(listed, 'Confirm');
  await check(page, 'confirm-listed');
  await listed.getByRole('button', { name: 'Decline' }).click();
  await listed.locator('.state.rejected').waitFor();
});

test('the question speaks the language of the page, and a command answers it too', async () => {
  const words = wordsOf('es');
  const page = await stage.signIn(/^Fred/, { locale: 'es' });
  await page.getByRole('button', { name: /Bank/ }).first().click();
  await page.getByRole('textbox').last().fill('please pay acme');
  await page.keyboard.press('Enter');
  const card = page.locator('.waiting.confirmation');
  await settled(card, words('confirm'));
  await card.getByText(/¿De verdad send_money en bank/).waitFor();
  await check(page, 'confirm-es');
  const code = await card.locator('.code').textContent();
  // A command decides what its user can have seen: an answer that is a second old.
  await new Promise((go) => { setTimeout(go, 1100); });
  await page.getByRole('textbox').last().fill(`/decline ${code}`);
  await page.keyboard.press('Enter');
  await page.locator('.tool .state.rejected').getByText(words('confirmation.rejected')).waitFor();
});
