// The queue in which money is decided: what is clicked is what was seen.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { ask, check, checkWidth, composer, startStage } from './support.mjs';

let [stage, fred, carl] = [];
before(async () => {
  stage = await startStage();
  fred = await stage.token('finance');
  const key = { name: 'carl', scopes: ['chat'], claims: { roles: ['cfo'] } };
  carl = (await stage.call(await stage.token('admin'), 'POST', '/v1/admin/keys', key)).key;
});
after(() => stage?.stop());
afterEach(async () => {
  await stage.closePages();
  for (const request of await waiting()) await decide(request, 'reject');
});

const waiting = async () => (await stage.call(carl, 'GET', '/v1/approvals?decidable=true&order=oldest')).items;
const stateOf = async ({ id }) => (await stage.call(carl, 'GET', `/v1/approvals/${id}`)).state;

/** Asks for a payment as a program of Fred's; the request. */
async function pay(amount) {
  const payment = { arguments: { from_account: 'current', to: 'acme', amount, currency: 'EUR' } };
  return (await stage.call(fred, 'POST', '/v1/agents/bank/skills/pay', payment)).approval;
}

/** Decides as another approver, who has no browser. */
const decide = ({ id, args_sha256 }, decision) => stage.call(carl, 'POST', `/v1/approvals/${id}/decision`, { decision, id, args_sha256 });

/** Mona at her queue. */
async function openQueue(options) {
  const mona = await stage.signIn('Mona, finance manager', options);
  await mona.getByRole('link', { name: /Approvals/ }).click();
  await mona.getByRole('tab', { name: /Waiting for me/ }).waitFor();
  return mona;
}

const cardOf = (page, { code }) => page.getByRole('article', { name: `${code}: bank send_money` });
const button = (card, name = 'Approve') => card.getByRole('button', { name, exact: true });

/** Waits until the card takes a click. */
async function settled(card) {
  await button(card).waitFor();
  await card.locator('button:not([aria-disabled]):has-text("Approve")').waitFor();
}

async function placeOf(element) {
  const { x, y, width, height } = await element.boundingBox();
  return { x: x + width / 2, y: y + height / 2 };
}

/** Presses whatever comes to lie under a point, from the first change of the page on, as fast as a script can. */
const pressOnChange = (page, { x, y }) => page.evaluate(([x, y]) => {
  window.pressed = [];
  const press = () => {
    const found = document.elementFromPoint(x, y)?.closest('button');
    if (!found) return;
    window.pressed.push(found.closest('article')?.getAttribute('aria-label') ?? found.textContent);
    found.click();
  };
  window.presser = new MutationObserver(press);
  window.presser.observe(document.body, { childList: true, subtree: true });
}, [x, y]);

test('a request that arrives just before the click is announced below, and is not what is approved', async () => {
  const first = await pay('20.00');
  const mona = await openQueue();
  const card = cardOf(mona, first);
  await settled(card);
  const place = await placeOf(button(card));
  await mona.mouse.move(place.x, place.y);
  const second = await pay('4999.00');
  const announced = mona.getByRole('button', { name: '1 new request' });
  await announced.waitFor();
  await mona.mouse.down();
  await mona.mouse.up();
  await card.locator('.state.succeeded').waitFor();
  assert.equal(await stateOf(second), 'pending');
});

test('the oldest request is first, a new one comes to the end when it is wanted, and nothing moves', async () => {
  const first = await pay('1.00');
  const second = await pay('2.00');
  const mona = await openQueue();
  await settled(cardOf(mona, second));
  const codes = () => mona.locator('ul.cards article').evaluateAll((cards) => cards.map((card) => card.getAttribute('aria-label').slice(0, 4)));
  assert.deepEqual(await codes(), [first.code, second.code]);
  const before = await placeOf(button(cardOf(mona, first)));
  const third = await pay('3.00');
  await pay('4.00');
  const announced = mona.getByRole('button', { name: '2 new requests' });
  await announced.waitFor();
  assert.deepEqual(await placeOf(button(cardOf(mona, first))), before);
  assert.equal(await cardOf(mona, third).count(), 0);
  await check(mona, 'queue-announced');
  await announced.click();
  await button(cardOf(mona, third)).waitFor();
  assert.deepEqual((await codes()).slice(0, 3), [first.code, second.code, third.code]);
  await check(mona, 'queue');
});

test('a card that has just appeared takes no click and no key for a second', async () => {
  const probe = await pay('1.00');
  const mona = await openQueue();
  await settled(cardOf(mona, probe));
  const place = await placeOf(button(cardOf(mona, probe)));
  await decide(probe, 'reject');
  await mona.reload();
  await mona.getByText('Nothing waits for your decision.').waitFor();
  await pressOnChange(mona, place);
  const request = await pay('999.00');
  const card = cardOf(mona, request);
  await button(card).waitFor();
  const pressedAtOnce = await button(card).evaluate((node) => {
    window.presser.disconnect();
    const wasSettled = node.getAttribute('aria-disabled') === null;
    node.focus();
    node.click();
    return !wasSettled;
  });
  assert.ok(pressedAtOnce, 'the test was too slow to press in time');
  await mona.keyboard.press('Enter');
  await settled(card);
  assert.equal(await stateOf(request), 'pending');
  await button(card).click();
  await card.locator('.state.succeeded').waitFor();
});

test('a card that moved under the mouse takes no click for a second', async () => {
  const first = await pay('20.00');
  const second = await pay('4999.00');
  const mona = await openQueue();
  await settled(cardOf(mona, second));
  await pressOnChange(mona, await placeOf(button(cardOf(mona, first))));
  await decide(first, 'reject');
  await cardOf(mona, first).locator('.state.rejected').waitFor();
  await mona.evaluate(() => [...document.querySelectorAll('button')].filter((node) => node.textContent.includes('Approve')).forEach((node) => node.click()));
  await mona.evaluate(() => window.presser.disconnect());
  await settled(cardOf(mona, second));
  assert.equal(await stateOf(second), 'pending');
});

test('a reason that is being typed keeps its place and the focus, and Escape decides nothing', async () => {
  const first = await pay('20.00');
  const mona = await openQueue();
  const card = cardOf(mona, first);
  await settled(card);
  const reason = card.getByLabel('Reason');
  await reason.focus();
  await mona.keyboard.type('not this ');
  const before = await reason.boundingBox();
  await pay('4999.00');
  await mona.getByRole('button', { name: '1 new request' }).waitFor();
  await mona.keyboard.type('week');
  await mona.keyboard.press('Enter');
  await mona.keyboard.press('Escape');
  assert.deepEqual(await reason.boundingBox(), before);
  assert.equal(await reason.inputValue(), 'not this week');
  assert.ok(await reason.evaluate((node) => node === document.activeElement));
  assert.equal((await waiting()).length, 2);
});

test('a request that cannot be shown is one card', async () => {
  const broken = await pay('1.00');
  const sound = await pay('2.00');
  const spoil = (view) => (view.id === broken.id ? { ...view, approvers: null, server_says: { title: { a: 1 }, hints: { title: { a: 1 } } } } : view);
  const mona = await stage.signIn('Mona, finance manager');
  await mona.route('**/v1/approvals?*', async (route) => {
    const answer = await route.fetch();
    const page = await answer.json();
    await route.fulfill({ response: answer, json: { ...page, items: page.items.map(spoil) } });
  });
  await mona.route(`**/v1/approvals/${broken.id}`, async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: spoil(await answer.json()) });
  });
  await mona.getByRole('link', { name: /Approvals/ }).click();
  await mona.getByText(`The request ${broken.code} cannot be shown`).waitFor();
  const card = cardOf(mona, sound);
  await settled(card);
  await button(card, 'Reject').click();
  await card.locator('.state.rejected').waitFor();
});

test('heading and sentence of a request are ours, and the words of the server stand under Details', async () => {
  const request = await pay('2.00');
  const mona = await openQueue();
  const card = cardOf(mona, request);
  await settled(card);
  assert.equal(await card.getByRole('heading').first().textContent(), 'Send 2.00 EUR to acme');
  await card.getByText('Fred asks for this at the agent bank: send_money of bank').waitFor();
  await card.getByText('Details').click();
  await card.locator('.untrusted').getByText('title: Send money').waitFor();
  await check(mona, 'queue-details');
});

test('a link to a request shows it once', async () => {
  const request = await pay('2.00');
  const mona = await openQueue();
  await mona.goto(`${stage.origin}/#/approvals/${request.id}`);
  await settled(cardOf(mona, request));
  assert.equal(await cardOf(mona, request).count(), 1);
  await mona.goto(`${stage.origin}/#/approvals/ZZZZ`);
  await mona.getByRole('alert').waitFor();
});

test('Escape stops an answer, and what it has asked for waits on', async () => {
  const page = await stage.signIn('Fred, finance');
  await ask(page, 'please pay acme slowly');
  const code = await page.locator('.waiting .code').textContent();
  await page.getByRole('button', { name: 'Stop' }).waitFor();
  await composer(page).press('Escape');
  await page.getByRole('button', { name: 'Stop' }).waitFor({ state: 'detached' });
  assert.deepEqual((await waiting()).map((request) => request.code), [code]);
  await page.getByRole('button', { name: 'Take back' }).click();
  await page.locator('.state.cancelled').first().waitFor();
});

test('the queue in the dark and on a phone', async () => {
  await pay('2.00');
  const request = await pay('12.50');
  const look = async (name, options) => {
    const mona = await openQueue(options);
    await settled(cardOf(mona, request));
    await pay(String(Math.random()).slice(2, 5));
    await mona.getByRole('button', { name: '1 new request' }).waitFor();
    await check(mona, name);
    await checkWidth(mona, name);
  };
  await look('queue-dark', { colorScheme: 'dark' });
  await look('queue-phone', { viewport: { width: 360, height: 740 } });
});
