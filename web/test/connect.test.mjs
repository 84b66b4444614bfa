// The page behind a one-time link, for clients that keep what is typed. It works without scripts.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { checkWidth, startStage } from './support.mjs';

let [stage, token] = [];
before(async () => {
  stage = await startStage();
  token = await stage.token('finance');
});
after(() => stage?.stop());

/** A chat of a client that keeps what is typed. */
function startChat() {
  const messages = [];
  return async (content) => {
    messages.push({ role: 'user', content });
    const { choices } = await stage.call(token, 'POST', '/v1/chat/completions', { model: 'bank', messages });
    messages.push(choices[0].message);
    return choices[0].message.content;
  };
}

const WAYS = { en: { viewport: { width: 1200, height: 800 } }, fr: { viewport: { width: 360, height: 740 } } };
const NEXT_STEP = { en: 'Type /connect in your chat for a new one.', fr: 'Tapez /connect dans la conversation pour en obtenir un autre.' };

for (const [locale, way] of Object.entries(WAYS)) {
  test(`a credential is entered without scripts, and the link works once: ${locale}`, async () => {
    const say = startChat();
    await say('/connect');
    const address = new URL(/http\S+\/connect\/\S+/.exec(await say('notes'))[0]).pathname;
    const page = await stage.open({ javaScriptEnabled: false, locale, ...way }, `${stage.origin}${address}`);
    const credential = Object.keys(JSON.parse(readFileSync(join(stage.folder, 'notes-tokens.json'), 'utf8'))).find((name) => name.includes('fred'));
    await page.locator('input[type=password]').fill(credential);
    await checkWidth(page, 'connect');
    await page.getByRole('button').click();
    const code = (await page.locator('output').textContent()).trim();
    assert.ok(!(await page.content()).includes(credential));
    assert.match(await say(code), /notes/);
    await page.goto(`${stage.origin}${address}`);
    await page.getByText(NEXT_STEP[locale]).waitFor();
    await say('/disconnect notes');
    await page.context().close();
  });
}

test('a link that was cancelled, or never was, is a page that says what to do', async () => {
  const say = startChat();
  await say('/connect');
  const address = new URL(/http\S+\/connect\/\S+/.exec(await say('notes'))[0]).pathname;
  await say('/cancel');
  const page = await stage.open({ javaScriptEnabled: false });
  for (const dead of [address, '/connect/made-up', '/connect/%00']) {
    const answer = await page.goto(`${stage.origin}${dead}`);
    assert.equal(answer.status(), 404, dead);
    await page.getByText(NEXT_STEP.en).waitFor();
  }
});
