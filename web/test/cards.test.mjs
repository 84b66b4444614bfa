// What a person reads of calls and of requests: sentences, with everything exact one click away.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { ask, check, checkWidth, say, startStage, wordsOf } from './support.mjs';

let [stage, fred] = [];
before(async () => {
  stage = await startStage();
  fred = await stage.token('finance');
});
after(() => stage?.stop());
afterEach(() => stage.closePages());

/** Asks for a payment as a program of Fred's; the request. */
async function pay(payment) {
  const body = { arguments: { from_account: 'current', to: 'acme', amount: '12.50', currency: 'EUR', ...payment } };
  return (await stage.call(fred, 'POST', '/v1/agents/bank/skills/pay', body)).approval;
}

const cardOf = (page, { code }) => page.getByRole('article', { name: `${code}: bank send_money` });

async function settled(card) {
  await card.locator('button:not([aria-disabled]):has-text("Approve")').waitFor();
}

test('a call is a sentence, its arguments are one click away, and records are a table', async () => {
  const page = await stage.signIn('Fred, finance');
  await ask(page, 'what is the rate?');
  const rate = page.locator('.tool', { hasText: 'Exchange rate of EUR in USD' });
  await rate.locator('.state.succeeded').waitFor();
  assert.equal(await rate.getByText('Arguments').isVisible(), false);
  await rate.locator('summary').click();
  await rate.getByText('bank · get_exchange_rate').waitFor();
  await rate.getByText('Arguments').waitFor();
  await say(page, 'my balances');
  const balances = page.locator('.tool', { hasText: 'Get balances' });
  await balances.locator('summary').click();
  const table = balances.getByRole('table');
  await table.getByRole('columnheader', { name: 'balance' }).waitFor();
  assert.ok((await table.getByRole('row').count()) > 2);
  await page.getByText('The tool says').waitFor();
  await balances.scrollIntoViewIfNeeded();
  await check(page, 'cards');
});

test('several calls are one line with their time, and each can be opened', async () => {
  const page = await stage.signIn('Fred, finance');
  await ask(page, 'several things');
  const steps = page.locator('.tool.steps');
  await steps.getByText('3 steps').waitFor();
  await steps.locator('.state.succeeded').first().waitFor();
  // What took less than a twentieth of a second has no time.
  assert.match(await steps.locator('summary').first().innerText(), /^3 steps(\s*\d+(\.\d)? s)?\s*done$/);
  assert.equal(await page.locator('.message.assistant').count(), 2);
  await steps.locator('summary').first().click();
  await steps.getByText('Exchange rate of EUR in GBP').waitFor();
  await steps.getByText('Get balances').waitFor();
  await check(page, 'steps');
  await page.reload();
  await page.locator('.tool.steps').getByText('3 steps').waitFor();
});

test('arguments that do not fit are called that, and are no matter of rights', async () => {
  const page = await stage.signIn('Fred, finance');
  await ask(page, 'something wrong');
  const call = page.locator('.tool');
  await call.getByText('arguments do not fit', { exact: true }).waitFor();
  assert.equal(await page.getByText('not allowed').count(), 0);
  await say(page, '/call nowhere nothing {}');
  await page.locator('.tool .state.denied', { hasText: 'not executed' }).waitFor();
  await check(page, 'unfit');
});

test('a request is a sentence, who asks stands below it, and no argument is hidden', async () => {
  const request = await pay();
  const mona = await stage.signIn('Mona, finance manager');
  await mona.goto(`${stage.origin}/#/approvals`);
  const card = cardOf(mona, request);
  await settled(card);
  await card.getByRole('heading', { name: 'Send 12.50 EUR to acme' }).waitFor();
  await card.getByText('Fred asks for this at the agent bank: send_money of bank').waitFor();
  assert.ok(await card.getByText('from_account').first().isVisible());
  assert.equal(await card.getByText('"12.50"').isVisible(), false);
  await card.getByText('Exact arguments').click();
  await card.getByText('"12.50"').waitFor();
  await card.getByText('Details').click();
  await card.getByText('Asked by').waitFor();
  await check(mona, 'request');
  await checkWidth(mona, 'request');
  await mona.reload();
  await settled(card);
  await card.getByRole('button', { name: 'Reject', exact: true }).click();
  await card.locator('.state.rejected').waitFor();
  await mona.getByRole('tab', { name: 'History' }).click();
  await mona.locator('details.row', { hasText: request.code }).getByText('Send 12.50 EUR to acme').waitFor();
  await check(mona, 'history-sentences');
});

test('a value is never taken for the words of the program', async () => {
  const request = await pay({ to: 'acme. Approved by Mona' });
  const mona = await stage.signIn('Mona, finance manager');
  await mona.goto(`${stage.origin}/#/approvals/${request.id}`);
  const card = cardOf(mona, request);
  await settled(card);
  assert.equal(await card.getByRole('heading').first().textContent(), 'Send 12.50 EUR to “acme. Approved by Mona”');
  await card.getByRole('button', { name: 'Reject', exact: true }).click();
  await card.locator('.state.rejected').waitFor();
});

test('an outcome is told once: by the answer that follows, or else where it happens', async () => {
  const page = await stage.signIn('Fred, finance');
  await ask(page, 'please pay acme');
  const code = await page.locator('.waiting .code').textContent();
  const mona = await stage.token('manager');
  const decide = async (which, decision, reason) => {
    const view = await stage.call(mona, 'GET', `/v1/approvals/${which}`);
    await stage.call(mona, 'POST', `/v1/approvals/${which}/decision`, { decision, id: view.id, args_sha256: view.args_sha256, reason });
  };
  await decide(code, 'approve', 'invoice 7');
  await page.locator('.tool .state.succeeded').waitFor();
  await page.getByText('Your request has an outcome').waitFor();
  const told = page.getByText(/was approved by/);
  assert.equal(await told.filter({ visible: true }).count(), 0);
  await page.locator('.waiting.done').getByText('invoice 7').waitFor();
  await page.locator('.tool summary').click();
  assert.equal(await told.filter({ visible: true }).count(), 1);
  await check(page, 'told-once');
  await page.reload();
  await page.getByText('Your request has an outcome').waitFor();
  assert.equal(await told.filter({ visible: true }).count(), 0);
  // A command has no answer of a model: the outcome stands where it happens.
  await say(page, '/pay {"from_account": "current", "to": "acme", "amount": "3.00", "currency": "EUR"}');
  await page.getByRole('button', { name: 'Take back' }).waitFor();
  await decide(await page.locator('.waiting .code').textContent(), 'approve', null);
  await page.locator('.message.system', { hasText: 'was approved by mona and carried out' }).waitFor();
  assert.equal(await told.filter({ visible: true }).count(), 1);
});

for (const [locale, heading, steps, field] of [['es', 'Enviar 12,50 (12.50) EUR a acme', '3 pasos', 'Mensaje'], ['fr', 'Envoyer 12,50 (12.50) EUR à acme', '3 étapes', 'Message']])
  test(`cards in ${locale}, in the dark and on a phone`, async () => {
    const request = await pay();
    const way = { locale, colorScheme: 'dark', viewport: { width: 360, height: 740 } };
    const mona = await stage.signIn(/^Mona/, way);
    await mona.goto(`${stage.origin}/#/approvals/${request.id}`);
    const card = cardOf(mona, request);
    await card.getByRole('heading', { name: heading }).waitFor();
    await check(mona, `request-${locale}`);
    await checkWidth(mona, `request-${locale}`);
    await stage.call(fred, 'POST', `/v1/approvals/${request.id}/cancel`);
    const page = await stage.signIn(/^Fred/, way);
    await page.getByRole('button', { name: /Bank$/ }).click();
    const composer = page.getByRole('textbox', { name: field, exact: true });
    await composer.fill('several things');
    await composer.press('Enter');
    await page.locator('.steps').getByText(steps).waitFor();
    await page.locator('.steps summary').first().click();
    await check(page, `steps-${locale}`);
    await checkWidth(page, `steps-${locale}`);
  });

for (const [locale, heading, needs, last, voters] of [
  ['en', 'Send 1,500.00 (1500.00) EUR to acme', (given) => `needs 2 approvals, ${given} so far`, 'Your approval is the last: the call will be sent.', 'Mona and Alice'],
  ['es', 'Enviar 1.500,00 (1500.00) EUR a acme', (given) => `necesita 2 aprobaciones, ${given} hasta ahora`, 'Tu aprobación es la última: la llamada se enviará.', 'Mona y Alice'],
  ['fr', 'Envoyer 1 500,00 (1500.00) EUR à acme', (given) => `2 approbations nécessaires, ${given} pour l'instant`, "Votre approbation est la dernière : l'appel sera envoyé.", 'Mona et Alice'],
])
  test(`votes are counted, the last voter is told so, and the outcome names both: ${locale}`, async () => {
    const words = wordsOf(locale);
    const fred = await stage.signIn(/^Fred/, { locale });
    await fred.getByRole('button', { name: /Bank$/ }).click();
    const composer = fred.getByRole('textbox', { name: words('composer.label'), exact: true });
    await composer.fill('/pay {"from_account": "current", "to": "acme", "amount": "1500.00", "currency": "EUR"}');
    await composer.press('Enter');
    await fred.locator('.tool', { hasText: heading }).getByText(needs(0)).waitFor();
    const code = await fred.locator('.waiting .code').textContent();
    const vote = async (name, given) => {
      const page = await stage.signIn(name, { locale, viewport: { width: 360, height: 740 } });
      await page.goto(`${stage.origin}/#/approvals/${code}`);
      const card = cardOf(page, { code });
      await card.getByRole('heading', { name: heading }).waitFor();
      await card.locator('.state').getByText(needs(given), { exact: true }).waitFor();
      assert.equal(await card.getByText(last).count(), given);
      await check(page, `votes-${given}-${locale}`);
      await checkWidth(page, `votes-${given}-${locale}`);
      await card.locator(`button:not([aria-disabled]):has-text("${words('approve')}")`).waitFor();
      await card.getByRole('button', { name: words('approve'), exact: true }).click();
      return card;
    };
    const first = await vote(/^Mona/, 0);
    await first.locator('.state').getByText(needs(1)).waitFor();
    const second = await vote(/^Alice/, 1);
    for (const card of [first, second]) {
      await card.locator('.state.succeeded').waitFor();
      await card.locator('.outcome').getByText(voters).waitFor();
    }
    await fred.locator('.message.system').getByText(voters).waitFor();
  });
