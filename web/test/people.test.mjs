// What people do with the page, in a real Chromium, against the demo and a model that answers by rules.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { ask, check, checkWidth, composer, say, startStage } from './support.mjs';

let stage;
before(async () => {
  stage = await startStage();
});
after(() => stage?.stop());
// A user may hold a limited number of event streams.
afterEach(() => stage?.closePages());

test('finance asks for a payment, the manager approves it, and the outcome is in the first chat', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'what is the rate?');
  await fred.getByText('One euro is 1.085000 dollars.').waitFor();
  const call = fred.locator('.tool', { hasText: 'get_exchange_rate' });
  await call.locator('summary').click();
  await call.getByText('1.085000').waitFor();
  await call.getByText('EUR').first().waitFor();
  await say(fred, 'please pay acme');
  await fred.getByText('finance-manager or cfo may approve it.').waitFor();
  const code = await fred.locator('.waiting .code').textContent();

  const mona = await stage.signIn('Mona, finance manager');
  await mona.getByLabel('1 waiting for your decision').waitFor();
  await mona.getByRole('link', { name: /Approvals/ }).click();
  const request = mona.getByRole('article', { name: `${code}: bank send_money` });
  await request.getByRole('heading', { name: 'Send 12.50 EUR to acme' }).waitFor();
  await check(mona, 'queue');
  await request.getByLabel('Reason').fill('invoice 7');
  await request.getByRole('button', { name: 'Approve', exact: true }).click();
  await request.locator('.state.succeeded').waitFor();

  await fred.locator('.tool summary .state.succeeded').last().waitFor();
  await fred.getByText('Your request has an outcome').waitFor();
  assert.equal(await fred.getByRole('button', { name: 'Take back' }).count(), 0);
  await check(fred, 'chat');

  const messages = await fred.locator('.message').count();
  await fred.reload();
  await fred.getByText('Your request has an outcome').waitFor();
  await fred.locator('.waiting.done').getByText('invoice 7').waitFor();
  assert.equal(await fred.getByText('please pay acme').count(), 1);
  assert.equal(await fred.locator('.message').count(), messages);
});

test('a request that is taken back cannot be approved, and says so where it is shown', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'please pay acme');
  const mona = await stage.signIn('Mona, finance manager');
  await mona.getByRole('link', { name: /Approvals/ }).click();
  await mona.getByRole('button', { name: 'Approve', exact: true }).waitFor();
  await fred.getByRole('button', { name: 'Take back' }).click();
  await mona.locator('.state.cancelled').waitFor();
  assert.equal(await mona.getByRole('button', { name: 'Approve', exact: true }).count(), 0);
  await fred.locator('.tool .state.cancelled').waitFor();
});

test('what a model writes is text: no element, no script, no picture from elsewhere', async () => {
  const fred = await stage.signIn('Fred, finance');
  const elsewhere = [];
  fred.on('request', (request) => new URL(request.url()).origin !== new URL(stage.link).origin && !request.url().startsWith('data:') && elsewhere.push(request.url()));
  await ask(fred, 'show a table');
  const answer = fred.locator('.message.assistant', { hasText: 'savings' });
  await answer.getByRole('link', { name: 'a link' }).waitFor();
  assert.equal(await answer.locator('table').count(), 1);
  assert.equal(await answer.locator('img').count(), 0);
  assert.equal(await answer.getByRole('link', { name: 'bad' }).count(), 0);
  assert.match(await answer.innerText(), /<img src=x onerror/);
  assert.deepEqual(elsewhere, []);
});

test('two tabs and a lost network show the same conversation, each message once', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, '');
  const second = await fred.context().newPage();
  await second.goto(stage.link);
  await second.getByRole('button', { name: 'Fred, finance' }).click();
  await second.getByRole('navigation', { name: 'Conversations' }).getByRole('link').nth(1).waitFor();
  await second.goto(fred.url());
  await second.getByText('Ask me for exchange rates').waitFor();
  await second.context().setOffline(true);
  await fred.getByText('The connection is lost').waitFor();
  await composer(fred).fill('what is the rate?');
  await fred.getByRole('button', { name: 'Send' }).click();
  await second.context().setOffline(false);
  await fred.getByText('One euro is').waitFor();
  await second.getByText('One euro is').waitFor();
  assert.equal(await fred.locator('.message.user').count(), 1);
  assert.equal(await second.locator('.message.user').count(), 1);
});

test('a reload asks for nothing twice, also what is asked for early', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'what is the rate?');
  await fred.getByText('One euro is').waitFor();
  const asked = [];
  fred.on('request', (request) => asked.push(request.url().slice(stage.origin.length)));
  await fred.reload();
  await fred.getByText('One euro is').waitFor();
  await fred.getByRole('navigation', { name: 'Conversations' }).getByRole('link').nth(1).waitFor();
  const conversation = `/v1/conversations/${fred.url().split('/').at(-1)}`;
  const times = (path) => asked.filter((other) => other === path).length;
  for (const path of ['/v1/me', '/v1/conversations?limit=50&archived=false', `${conversation}/messages?after=0&limit=100`, `${conversation}/branches`])
    assert.equal(times(path), 1, path);
  assert.equal(times(conversation), 2, 'once before the messages, once with them');
});

test('a long answer streams and stops at a key', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'something long');
  await fred.getByText('word word').waitFor();
  await fred.getByRole('button', { name: 'Stop' }).waitFor();
  await composer(fred).press('Escape');
  await fred.getByRole('button', { name: 'Stop' }).waitFor({ state: 'detached' });
  await say(fred, 'what is the rate?');
  await fred.getByText('One euro is').waitFor();
});

test('an own server is connected in the chat with a hidden field, and removed on its page', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, '/connect');
  await fred.getByRole('button', { name: /notes/ }).click();
  const token = Object.keys(JSON.parse(readFileSync(join(stage.folder, 'notes-tokens.json'), 'utf8'))).find((name) => name.includes('fred'));
  await fred.locator('input[type=password]').and(fred.getByLabel('Your token for the notes?')).fill(token);
  await check(fred, 'prompt');
  await fred.getByRole('button', { name: 'Send' }).click();
  await fred.getByText('notes is connected').waitFor();
  assert.ok(!(await fred.content()).includes(token));
  await fred.getByRole('link', { name: 'Connections' }).click();
  const notes = fred.getByRole('article', { name: 'notes' });
  await notes.getByRole('button', { name: 'Test' }).click();
  await notes.getByRole('status').waitFor();
  await check(fred, 'connections');
  await notes.getByRole('button', { name: 'Replace' }).click();
  await notes.getByLabel('Your token for the notes?').fill('wrong');
  await notes.getByRole('button', { name: 'Save' }).click();
  await notes.getByRole('alert').waitFor();
  await notes.getByRole('button', { name: 'Cancel' }).click();
  await notes.getByText('connected', { exact: true }).waitFor();
  await notes.getByRole('button', { name: 'Remove' }).click();
  await fred.getByRole('alertdialog').getByRole('button', { name: 'Remove' }).click();
  await notes.getByText('not connected').waitFor();
});

test('what did not arrive stays in the composer, over a reload, too, and is sent once', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, '');
  await composer(fred).fill('what is the rate?');
  const address = fred.url();
  await fred.reload();
  await fred.getByText('Ask me for exchange rates').waitFor();
  assert.equal(fred.url(), address);
  assert.equal(await composer(fred).inputValue(), 'what is the rate?');
  await fred.route('**/v1/conversations/*/messages', (route) => (route.request().method() === 'POST' ? route.abort() : route.continue()));
  await composer(fred).press('Enter');
  await fred.getByRole('alert').waitFor();
  assert.equal(await composer(fred).inputValue(), 'what is the rate?');
  await fred.unroute('**/v1/conversations/*/messages');
  await fred.getByRole('button', { name: 'Try again' }).click();
  await fred.getByText('One euro is').waitFor();
  assert.equal(await composer(fred).inputValue(), '');
  assert.equal(await fred.locator('.message.user').count(), 1);
  await fred.reload();
  await fred.getByText('One euro is').waitFor();
  assert.equal(await composer(fred).inputValue(), '');
});

test('what arrived without an answer is not sent a second time', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, '');
  await composer(fred).fill('what is the rate?');
  await fred.route('**/v1/conversations/*/messages', async (route) => {
    if (route.request().method() !== 'POST') return route.continue();
    await route.fetch();
    await route.abort();
  });
  await composer(fred).press('Enter');
  await fred.getByRole('alert').waitFor();
  await fred.getByText('One euro is').waitFor();
  await fred.unroute('**/v1/conversations/*/messages');
  await fred.getByRole('button', { name: 'Try again' }).click();
  await fred.getByRole('alert').waitFor({ state: 'detached' });
  assert.equal(await composer(fred).inputValue(), '');
  await fred.reload();
  await fred.getByText('One euro is').waitFor();
  assert.equal(await fred.locator('.message.user').count(), 1);
});

test('the end stays in view while an answer grows, but not for a reader who went up', async () => {
  const fred = await stage.signIn('Fred, finance', { viewport: { width: 900, height: 420 } });
  await ask(fred, 'show a table');
  await fred.getByText('savings').waitFor();
  await fred.getByRole('button', { name: 'Stop' }).waitFor({ state: 'detached' });
  await say(fred, 'something long');
  const thread = fred.getByRole('log', { name: 'Messages' });
  const fromEnd = () => thread.evaluate((box) => box.scrollHeight - box.scrollTop - box.clientHeight);
  const grow = async () => {
    const height = () => thread.evaluate((box) => box.scrollHeight);
    const before = await height();
    while ((await height()) <= before) await fred.waitForTimeout(50);
  };
  await fred.getByText('word word').waitFor();
  await grow();
  assert.ok((await fromEnd()) < 60);
  await thread.hover();
  await fred.mouse.wheel(0, -250);
  const newest = fred.getByRole('button', { name: 'Newest' });
  await newest.waitFor();
  const top = await thread.evaluate((box) => box.scrollTop);
  await grow();
  assert.equal(await thread.evaluate((box) => box.scrollTop), top);
  await newest.click();
  await newest.waitFor({ state: 'detached' });
  await thread.hover();
  await fred.mouse.wheel(0, -250);
  await newest.waitFor();
  // One may go on talking before the answer is there, and sees what one said.
  await say(fred, 'what is the rate?');
  await fred.locator('.message.user').getByText('what is the rate?').waitFor();
  await newest.waitFor({ state: 'detached' });
  await composer(fred).press('Escape');
  await fred.getByRole('button', { name: 'Stop' }).waitFor({ state: 'detached' });
});

test('a first message begins a conversation, and its answer streams', async () => {
  const fred = await stage.signIn('Fred, finance');
  const first = fred.getByRole('textbox', { name: 'Message to Bank' });
  await fred.getByRole('button', { name: 'Exchange rate' }).click();
  assert.equal(await first.inputValue(), 'Exchange rate: ');
  await fred.keyboard.type('euro in dollars');
  await check(fred, 'first-message');
  await fred.keyboard.press('Enter');
  await fred.getByText('One euro is').waitFor();
  assert.equal(await fred.locator('.message.user').count(), 1);
  await fred.reload();
  await fred.getByText('One euro is').waitFor();
  assert.equal(await fred.locator('.message.user').count(), 1);
});

test('commands are suggested, chosen with the keyboard or the mouse, and put away', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, '');
  await composer(fred).fill('/con');
  const list = fred.getByRole('listbox', { name: 'Commands' });
  await list.getByRole('option', { name: 'connect a server of your own' }).waitFor();
  await check(fred, 'commands');
  await fred.keyboard.press('ArrowDown');
  await fred.keyboard.press('Enter');
  assert.equal(await composer(fred).inputValue(), '/connections ');
  await composer(fred).fill('/ra');
  await list.getByRole('option', { name: '/rate' }).click();
  assert.equal(await composer(fred).inputValue(), '/rate ');
  await composer(fred).fill('/to');
  await list.waitFor();
  await fred.keyboard.press('Escape');
  await list.waitFor({ state: 'detached' });
  await say(fred, '/tools');
  await fred.locator('.message').getByText('get_exchange_rate').first().waitFor();
});

test('code is copied, and a conversation is saved as a file', async () => {
  const fred = await stage.signIn('Fred, finance', { permissions: ['clipboard-read', 'clipboard-write'] });
  await ask(fred, 'show a table');
  const code = fred.locator('.code-block', { hasText: 'json' });
  await code.getByRole('button', { name: 'Copy' }).click();
  await code.getByRole('button', { name: 'Copied' }).waitFor();
  assert.equal((await fred.evaluate(() => navigator.clipboard.readText())).trim(), '{"a": 1}');
  await fred.getByRole('button', { name: 'More about this conversation' }).click();
  const saved = fred.waitForEvent('download');
  await fred.getByRole('button', { name: 'Download' }).click();
  const file = await saved;
  assert.match(file.suggestedFilename(), /\.md$/);
  assert.match(readFileSync(await file.path(), 'utf8'), /show a table[\s\S]*savings/);
});

test('what the program says keeps its lines, and the page has one bar wherever one goes', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, '/tools');
  const tools = fred.locator('.message.system', { hasText: 'get_exchange_rate' });
  await tools.waitFor();
  assert.match(await tools.innerText(), /\n.*get_balances.*\n/);
  await fred.getByRole('link', { name: 'New conversation', exact: true }).click();
  await fred.getByRole('heading', { name: 'Start a conversation' }).waitFor();
  assert.equal(await fred.locator('.bar').count(), 1);
});

test('a part of the page that cannot be loaded says so, and comes back with the page', async () => {
  const alice = await stage.signIn('Alice, admin');
  await alice.route('**/web/AdminPage*.js', (route) => route.abort());
  await alice.getByRole('link', { name: 'Administration' }).click();
  await alice.getByText('This part of the page could not be loaded.').waitFor();
  await check(alice, 'not-loaded');
  await alice.unroute('**/web/AdminPage*.js');
  await alice.getByRole('button', { name: 'Load the page again' }).click();
  await alice.getByRole('heading', { name: 'Users' }).waitFor();
  // The browser says that a script was not there, and React that a part failed.
  stage.complaints = stage.complaints.filter((line) => !/AdminPage/.test(line));
});

test('the address says what is shown, goes back and forward, and leads to the chat where it is unknown', async () => {
  const fred = await stage.signIn('Fred, finance');
  const start = fred.getByRole('heading', { name: 'Start a conversation' });
  await start.waitFor();
  assert.match(fred.url(), /#\/chat$/);
  const approvals = fred.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: /Approvals/ });
  await approvals.click();
  await fred.getByRole('heading', { name: 'Approvals' }).waitFor();
  assert.match(fred.url(), /#\/approvals$/);
  assert.equal(await approvals.getAttribute('aria-current'), 'page');
  await fred.goBack();
  await start.waitFor();
  await fred.goForward();
  await fred.getByRole('heading', { name: 'Approvals' }).waitFor();
  await fred.goto(`${stage.origin}/#/no-such-page`);
  await start.waitFor();
  assert.match(fred.url(), /#\/chat$/);
});

test('a guest is told to sign in before connecting a server', async () => {
  const guest = await stage.signIn('Guest');
  await guest.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Connections' }).click();
  const notes = guest.getByRole('article', { name: 'notes' });
  await notes.getByText('Sign in to connect a server of your own.').waitFor();
  assert.equal(await notes.getByRole('button').count(), 0);
  await check(guest, 'guest-connections');
});

test('a conversation is deleted with the keyboard alone', async () => {
  const fred = await stage.signIn('Fred, finance');
  await fred.getByRole('button', { name: 'Talk to Bank' }).focus();
  await fred.keyboard.press('Enter');
  await fred.getByText('Ask me for exchange rates').waitFor();
  await fred.keyboard.type('what is the rate?');
  await fred.keyboard.press('Enter');
  await fred.getByText('One euro is').waitFor();
  const address = fred.url();
  await fred.getByRole('button', { name: 'More about this conversation' }).focus();
  await fred.keyboard.press('Enter');
  await fred.getByRole('button', { name: 'Delete' }).focus();
  await fred.keyboard.press('Enter');
  await fred.getByRole('alertdialog', { name: 'Delete it with all messages?' }).waitFor();
  await fred.keyboard.press('Tab');
  await fred.keyboard.press('Enter');
  await fred.getByRole('button', { name: 'Talk to Bank' }).waitFor();
  await fred.goto(address);
  await fred.getByText('This conversation is not there').waitFor();
});

test('a conversation is renamed, pinned, found by its words, put away and brought back', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'what is the rate?');
  await fred.getByText('One euro is').waitFor();
  const menu = (name) => async () => {
    await fred.getByRole('button', { name: 'More about this conversation' }).click();
    await fred.getByRole('button', { name }).click();
  };
  await menu('Rename')();
  await check(fred, 'rename');
  await fred.getByRole('textbox', { name: 'Title' }).fill('Rates of November');
  await fred.keyboard.press('Enter');
  await fred.getByRole('heading', { name: 'Rates of November' }).waitFor();
  await menu('Pin')();
  const list = fred.getByRole('navigation', { name: 'Conversations' });
  await list.getByRole('region', { name: 'Pinned' }).getByRole('link', { name: /Rates of November/ }).waitFor();
  await fred.getByRole('searchbox').fill('dollars');
  await list.getByRole('link', { name: /Rates of November/ }).waitFor();
  await fred.getByRole('searchbox').fill('nothing-has-this-word');
  await fred.getByText('No conversation has these words.').waitFor();
  await fred.getByRole('searchbox').fill('');
  await list.getByRole('link', { name: /Rates of November/ }).waitFor();
  await menu('Archive it')();
  await list.getByRole('link', { name: /Rates of November/ }).waitFor({ state: 'detached' });
  await list.getByRole('button', { name: 'Archive' }).click();
  await list.getByRole('link', { name: /Rates of November/ }).waitFor();
  await menu('Restore')();
  await list.getByText('Nothing is archived.').waitFor();
});

test('a message is edited and asked again, and each version can be seen', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'show a table');
  await fred.getByText('savings').waitFor();
  await fred.getByRole('button', { name: 'Stop' }).waitFor({ state: 'detached' });
  await fred.locator('.message.user').hover();
  await fred.getByRole('button', { name: 'Edit' }).click();
  await fred.getByRole('textbox', { name: 'Edit' }).fill('what is the rate?');
  await check(fred, 'edit');
  await fred.getByRole('button', { name: 'Send' }).first().click();
  await fred.getByText('One euro is').waitFor();
  assert.equal(await fred.getByText('savings').count(), 0);
  assert.equal(await fred.locator('.message.user').count(), 1);
  await fred.getByRole('button', { name: 'Ask again' }).click();
  await fred.getByText('3 / 3').waitFor();
  await fred.getByText('One euro is').waitFor();
  await check(fred, 'versions');
  await fred.getByRole('button', { name: 'Earlier version' }).click();
  await fred.getByText('2 / 3').waitFor();
  await fred.getByRole('button', { name: 'Earlier version' }).click();
  await fred.getByText('savings').waitFor();
  await fred.reload();
  await fred.getByText('savings').waitFor();
});

test('an answer is rated with a word, another thumb replaces it, and the same one takes it back', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'what is the rate?');
  const answer = fred.locator('.message.assistant', { hasText: 'One euro is' });
  const up = answer.getByRole('button', { name: 'Good answer' });
  const down = answer.getByRole('button', { name: 'Bad answer' });
  const pressed = (button) => button.and(fred.locator('[aria-pressed=true]'));
  await down.click();
  await pressed(down).waitFor();
  await answer.getByRole('textbox', { name: 'In a word: why?' }).fill('too short');
  await check(fred, 'feedback');
  await answer.getByRole('button', { name: 'Send' }).click();
  await answer.getByRole('textbox').waitFor({ state: 'detached' });
  const token = await stage.token('finance');
  const id = /chat\/([^/]+)$/.exec(fred.url())[1];
  const { items } = await stage.call(token, 'GET', `/v1/conversations/${id}/messages`);
  const message = items.find((item) => JSON.stringify(item.parts).includes('One euro is')).id;
  const path = `/v1/conversations/${id}/messages/${message}/feedback`;
  assert.deepEqual(await stage.call(token, 'GET', path), { rating: 'down', comment: 'too short' });
  await fred.reload();
  await pressed(down).waitFor();
  await up.click();
  await pressed(up).waitFor();
  assert.equal(await pressed(down).count(), 0);
  await up.click();
  await pressed(up).waitFor({ state: 'detached' });
  await assert.rejects(stage.call(token, 'GET', path), /404/);
});

test('an image goes with a message, and stands in it after a reload', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, '');
  const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64');
  const chooser = fred.waitForEvent('filechooser');
  await fred.getByRole('button', { name: 'Attach a file' }).click();
  await (await chooser).setFiles({ name: 'dot.png', mimeType: 'image/png', buffer: png });
  await fred.getByRole('button', { name: 'Remove dot.png' }).waitFor();
  await check(fred, 'attachment');
  await say(fred, 'what is this?');
  await fred.locator('.message.user').getByRole('img', { name: 'dot.png' }).waitFor();
  await fred.reload();
  await fred.locator('.message.user').getByRole('img', { name: 'dot.png' }).waitFor();
});

test('the outcome of a request is a notice in another conversation', async () => {
  const fred = await stage.signIn('Fred, finance');
  await ask(fred, 'please pay acme');
  await fred.getByRole('button', { name: 'Take back' }).waitFor();
  const first = fred.url();
  const code = await fred.locator('.waiting .code').textContent();
  await fred.getByRole('link', { name: 'New conversation', exact: true }).click();
  await ask(fred, 'what is the rate?');
  await fred.getByText('One euro is').waitFor();
  const mona = await stage.signIn('Mona, finance manager');
  await mona.getByRole('link', { name: /Approvals/ }).click();
  const request = mona.getByRole('article', { name: `${code}: bank send_money` });
  await request.getByRole('button', { name: 'Reject', exact: true }).click();
  const notice = fred.locator('.toast', { hasText: code });
  await notice.waitFor();
  await check(fred, 'notice');
  await notice.getByRole('link').click();
  await fred.locator('.tool .state.rejected').waitFor();
  assert.equal(fred.url(), first);
  assert.equal(await notice.count(), 0);
});

test('a phone in the dark, in Spanish and in French', async () => {
  const phone = { viewport: { width: 360, height: 740 }, colorScheme: 'dark' };
  const spanish = await stage.open({ ...phone, locale: 'es' });
  await spanish.getByText('Las personas de la demo').waitFor();
  await check(spanish, 'phone-sign-in');
  await spanish.getByRole('button', { name: 'Fred, finanzas' }).click();
  await spanish.getByRole('button', { name: 'Hablar con Bank' }).click();
  await spanish.getByText('Pregúntame por tipos de cambio').waitFor();
  await spanish.getByRole('textbox', { name: 'Mensaje', exact: true }).fill('please pay acme');
  await spanish.getByRole('textbox', { name: 'Mensaje', exact: true }).press('Enter');
  await spanish.getByRole('button', { name: 'Retirar' }).waitFor();
  await check(spanish, 'phone-chat');
  await checkWidth(spanish, 'phone-chat');
  await spanish.getByRole('button', { name: 'Conversaciones' }).click();
  await check(spanish, 'phone-list');
  const french = await stage.open({ ...phone, locale: 'fr' });
  await french.getByRole('button', { name: 'Mona, directrice financière' }).click();
  await french.getByRole('link', { name: /Approbations/ }).click();
  await french.getByRole('button', { name: 'Approuver', exact: true }).waitFor();
  await check(french, 'phone-queue');
  await checkWidth(french, 'phone-queue');
  await french.getByRole('button', { name: 'Refuser', exact: true }).click();
  await spanish.locator('.tool .state.rejected').waitFor();
});

test('whoever signs in next in a tab begins anew', async () => {
  const page = await stage.signIn('Fred, finance');
  await ask(page, 'what is the rate?');
  await page.getByText('One euro is').waitFor();
  const id = /chat\/([^/]+)$/.exec(page.url())[1];
  await page.getByRole('button', { name: 'Fred' }).click();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('button', { name: 'Erin, employee' }).waitFor();
  const asked = [];
  page.on('request', (request) => asked.push(request.url()));
  await page.getByRole('button', { name: 'Erin, employee' }).click();
  await page.getByRole('heading', { name: 'Hello Erin!' }).waitFor();
  await page.getByText('No conversations yet.').waitFor();
  assert.match(page.url(), /#\/chat$/);
  assert.deepEqual(asked.filter((address) => address.includes(id)), []);
});

test('a token that is not good is refused', async () => {
  const page = await stage.open();
  await page.getByText('Sign in with a token').click();
  await page.getByLabel('Token', { exact: true }).fill('nonsense');
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.getByText('This token is not accepted').waitFor();
  await check(page, 'sign-in');
});
