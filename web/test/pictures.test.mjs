// The pictures of the README: the demo's minute, as its model and its people play it. `make pictures` keeps them in
// docs/pictures/; a test run puts them where the other pictures are.
import assert from 'node:assert/strict';
import { mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { settle, SHOTS, startStage, WITHOUT_MODEL } from './support.mjs';

const FOLDER = process.env.PICTURES ?? SHOTS;
/** A page of text should not weigh more. */
const MOST_BYTES = 150_000;

let stage;
before(async () => {
  stage = await startStage({ settings: WITHOUT_MODEL });
});
after(() => stage?.stop());

async function take(page, name) {
  const path = join(FOLDER, `${name}.png`);
  mkdirSync(FOLDER, { recursive: true });
  // Neither the mouse nor the cursor of a field is on a picture.
  await page.mouse.move(0, 0);
  await page.evaluate(() => document.activeElement?.blur());
  await settle(page);
  await page.screenshot({ path });
  assert.ok(statSync(path).size <= MOST_BYTES, `${name} has ${statSync(path).size} bytes`);
}

test('a payment waits, and the manager beside it approves', async () => {
  const fred = await stage.signIn('Fred, finance', { hasGuide: true, viewport: { width: 1280, height: 760 } });
  const step = (name) => fred.locator('.guide').getByRole('button', { name });
  await step('Ask a rate').click();
  await fred.getByText('108.50 USD').waitFor();
  await step('Pay acme').click();
  await fred.getByRole('button', { name: 'Take back' }).waitFor();
  await step('Approve as the manager').click();
  const mona = fred.frameLocator('iframe');
  const approve = mona.locator('button:not([aria-disabled]):has-text("Approve")');
  await approve.waitFor();
  await take(fred, 'waiting');
  await approve.click();
  await fred.locator('.tool', { hasText: 'Send 12.50 EUR to acme' }).locator('.state.succeeded').waitFor();
  await mona.locator('.state.succeeded').waitFor();
  await fred.getByText(/^The request .* was approved by mona and carried out/).waitFor();
  await take(fred, 'approved');
});
