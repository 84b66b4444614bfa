// The minute of the demo, with its own model: two people in one window.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { check, checkWidth, startStage, WITHOUT_MODEL } from './support.mjs';

let stage;
before(async () => {
  stage = await startStage({ settings: WITHOUT_MODEL });
});
after(() => stage?.stop());
afterEach(() => stage.closePages());

const step = (guide, name) => guide.getByRole('button', { name });

test('four clicks: a rate, a payment, the manager beside it, and the own notes', async () => {
  const fred = await stage.signIn('Fred, finance', { hasGuide: true, viewport: { width: 1440, height: 900 } });
  const guide = fred.getByRole('region', { name: 'A minute with the demo' });
  await guide.waitFor();
  await check(fred, 'guide');
  await step(guide, 'Ask a rate').click();
  await fred.locator('.tool', { hasText: 'Exchange rate of EUR in USD' }).locator('.state.succeeded').waitFor();
  await fred.locator('.message.assistant').getByText('108').first().waitFor();
  await step(guide, 'Pay acme').click();
  await fred.locator('.message.user', { hasText: 'Please pay' }).waitFor();
  assert.match(await fred.locator('.message').nth(-2).innerText(), /108\.50/, 'the second question comes after the first answer');
  await fred.getByRole('button', { name: 'Take back' }).waitFor();
  assert.equal(await fred.getByRole('navigation', { name: 'Conversations' }).getByRole('link').count(), 2, 'one conversation, and the link to a new one');
  await step(guide, 'Approve as the manager').click();
  const mona = fred.frameLocator('iframe');
  await mona.getByRole('heading', { name: 'Send 12.50 EUR to acme' }).waitFor();
  await mona.locator('button:not([aria-disabled]):has-text("Approve")').waitFor();
  await check(fred, 'guide-two');
  await mona.getByRole('button', { name: 'Approve', exact: true }).click();
  await fred.locator('.tool .state.succeeded').nth(1).waitFor();
  await mona.locator('.state.succeeded').waitFor();
  await step(guide, 'Connect your notes').click();
  const token = await guide.locator('code').textContent();
  assert.match(token, /^notes-fred-/);
  await fred.locator('input[type=password]').fill(token);
  await check(fred, 'guide-notes');
  await fred.getByRole('button', { name: 'Send' }).click();
  await fred.getByText('notes is connected').waitFor();
  assert.equal(await guide.locator('.step svg').count(), 4, 'each step is done');
  await check(fred, 'guide-done');
  // The second person is nobody in this tab.
  await fred.reload();
  await fred.getByRole('button', { name: 'Fred' }).waitFor();
  await mona.getByRole('tab', { name: 'History' }).waitFor();
  await guide.getByRole('button', { name: 'Close the minute' }).click();
  await guide.waitFor({ state: 'detached' });
  assert.equal(await fred.locator('iframe').count(), 0);
  await fred.reload();
  await fred.getByRole('button', { name: 'Fred' }).waitFor();
  assert.equal(await guide.count(), 0);
  await fred.getByRole('button', { name: 'Fred' }).click();
  await fred.getByRole('button', { name: 'A minute with the demo' }).click();
  await guide.waitFor();
});

test('another person of the demo begins the minute as the one whom it is about', async () => {
  const erin = await stage.signIn('Erin, employee', { hasGuide: true });
  await erin.getByRole('button', { name: 'Erin' }).click();
  await erin.getByRole('button', { name: 'A minute with the demo' }).click();
  await erin.getByRole('region', { name: 'A minute with the demo' }).waitFor();
  await erin.getByRole('button', { name: 'Fred' }).waitFor();
});

test('who has not come by the link of the demo sees nothing of it', async () => {
  const page = await stage.open({ hasGuide: true }, stage.origin);
  await page.getByLabel('Token', { exact: true }).fill(await stage.token('finance'));
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.getByRole('button', { name: 'Fred' }).click();
  await page.getByRole('button', { name: 'Sign out' }).waitFor();
  assert.equal(await page.getByText('A minute with the demo').count(), 0);
});

for (const [locale, ask, pay, approve, connect] of [
  ['es', 'Pregunta un tipo de cambio', 'Paga a acme', 'Aprueba como la directora', 'Conecta tus notas'],
  ['fr', 'Demander un taux', 'Payer acme', 'Approuver en directrice', 'Connecter vos notes'],
])
  test(`the minute in ${locale}, in the dark and on a phone`, async () => {
    const fred = await stage.signIn(/^Fred/, { hasGuide: true, locale, colorScheme: 'dark', viewport: { width: 360, height: 740 } });
    const guide = fred.locator('.guide');
    await guide.waitFor();
    await check(fred, `guide-${locale}-start`);
    await step(guide, ask).click();
    await fred.locator('.tool .state.succeeded').waitFor();
    await step(guide, pay).click();
    await fred.locator('.waiting .code').waitFor();
    await step(guide, approve).click();
    const mona = fred.frameLocator('iframe');
    await mona.locator('.decision button:not([aria-disabled])').first().waitFor();
    await check(fred, `guide-${locale}`);
    await checkWidth(fred, `guide-${locale}`);
    // The step is done when she has decided.
    await guide.locator('[data-next]').getByText(approve).waitFor();
    await mona.locator('.decision button').nth(1).click();
    await fred.locator('.tool .state.rejected').waitFor();
    await guide.locator('[data-next]').getByText(connect).waitFor();
    await guide.getByRole('button').last().waitFor();
    await step(guide, connect).click();
    await guide.locator('code').waitFor();
    await fred.locator('input[type=password]').waitFor();
    await check(fred, `guide-${locale}-notes`);
    await checkWidth(fred, `guide-${locale}-notes`);
  });
