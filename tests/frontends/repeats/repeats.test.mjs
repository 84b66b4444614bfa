// Clients repeat by themselves what fails. Whatever they do, a turn that has called a tool is not begun again.
// `make repeats` installs the clients and runs this.
import assert from 'node:assert/strict';
import { appendFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CLIENTS, stopClients } from './clients.mjs';
import { ENDINGS, question } from './model.mjs';
import { PROXY_KEY, startStage, startWire, until } from './stage.mjs';

/** By which clients ask: at the service, and at LiteLLM's proxy in front of it. */
const ASKERS = [
  ...Object.keys(CLIENTS).map((client) => ({ name: client, client })),
  ...['AI SDK, compatible', 'LangChain JS, chat', 'openai-node, chat', 'openai-node, responses'].map((client) => ({ name: `proxy: ${client}`, client, group: 'plain' })),
  { name: 'proxy with fallback: openai-node, chat', client: 'openai-node, chat', group: 'fallback' },
];
const CREDENTIALS = ['key', 'token'];
const WAYS = CREDENTIALS.flatMap((credential) => [false, true].map((stream) => ({ credential, stream })));
/** So many ask at once. */
const AT_ONCE = Number(process.env.AT_ONCE ?? 24);
/** Seconds after which a client gives up on a model that is `slow` after its call or `late` with it. */
const PATIENCE = 2;
const REFUSED = 90_000;

let stage, references = 0;
before(async () => (stage = await startStage()));
after(async () => {
  stopClients();
  await stage?.stop();
});

const { half, hang, slow, stall, late, well, alike, ...answers } = ENDINGS;
const FAILURES = [
  ...[...Object.keys(answers), 'half', 'hang', 'slow', 'late', 'lost'].map((ending) => ({ name: ending, ending })),
  ...['500', 'cut', 'slow', 'lost'].map((ending) => ({ name: `${ending}, consent`, ending, tool: 'lend_cash' })),
  // What the clients do when nothing was called.
  { name: 'early', ending: 'early' },
].filter(({ name }) => new RegExp(process.env.FAILURE ?? '').test(name));

test('a tool runs once, whatever fails after it and however its client repeats', async () => {
  const cells = ASKERS.flatMap((asker) => FAILURES.flatMap((failure) => WAYS.map((way) => ({ ...asker, ...way, failure, ...failure, asker: asker.name }))));
  await inParallel(cells, async (cell) => Object.assign(cell, await ask(cell)));
  const consents = await stage.requestsForApproval();
  for (const cell of cells) cell.count = cell.tool ? (consents.get(cell.reference) ?? 0) : stage.bank.ledger.of(cell.reference);
  // The service itself asks the model three times before a turn fails.
  for (const cell of cells.filter(({ ending }) => ending === 'early')) cell.count = stage.model.requests.filter((sent) => sent.includes(cell.reference)).length / 3;
  console.table(Object.fromEntries(ASKERS.map(({ name }) => [
    name, Object.fromEntries(FAILURES.map((failure) => [failure.name, summary(cells.filter((cell) => cell.asker === name && cell.failure === failure))])),
  ])));
  keep(cells);
  const wrong = cells.filter(({ ending, tool, count, told, reference }) =>
    ending !== 'early' && (count > 1 || (tool && stage.bank.ledger.of(reference) > 0) || !told));
  assert.deepEqual(wrong.map(describe), []);
});

test('a repetition that is meant is done', async () => {
  const cells = ASKERS.flatMap((asker) => WAYS.map((way) => ({ ...asker, ...way, asker: asker.name, ending: '500' })));
  const wrong = [];
  await inParallel(cells, async (cell) => {
    const counts = [];
    const again = async (headers, reference) => {
      cell = { ...cell, ...(await ask({ ...cell, headers, ...(reference && { reference }) })) };
      counts.push(stage.bank.ledger.of(cell.reference));
    };
    await again();
    const { reference } = cell;
    await again({}, reference);
    // The proxy does not pass it on.
    await again(cell.group ? {} : { 'Idempotency-Key': crypto.randomUUID() }, reference);
    await again({}, `${reference}-other`);
    await sleep(REFUSED + 1000);
    await again({}, reference);
    const expected = cell.group ? [1, 1, 1, 1, 2] : [1, 1, 2, 1, 3];
    if (String(counts) !== String(expected)) wrong.push(`${describe(cell)}: ${counts} instead of ${expected}`);
  }, Infinity);
  assert.deepEqual(wrong, []);
});

for (const [where, sort] of Object.entries({ call: { seconds: 30, ending: 'well' }, 'step after it': { ending: 'stall' } }))
  test(`a service that is killed in the middle of a ${where} and started again does not call twice`, async () => {
    const cells = ASKERS.flatMap((asker) => WAYS.map((way) => ({ ...asker, ...way, ...sort, asker: asker.name, reference: newReference() })));
    // One user has 16 calls at a time.
    for (let from = 0; from < cells.length; from += 28) {
      const wave = cells.slice(from, from + 28);
      const asked = inParallel(wave, async (cell) => Object.assign(cell, await ask(cell)), Infinity);
      await until(() => wave.every(({ reference }) => stage.bank.ledger.of(reference)), 'every tool was called');
      await stage.killService();
      await stage.startService();
      await asked;
    }
    // Whoever takes a run up does so after its lease.
    await sleep(20_000);
    for (const cell of cells) cell.count = stage.bank.ledger.of(cell.reference);
    console.table(Object.fromEntries(ASKERS.map(({ name }) => [name, { [where]: summary(cells.filter(({ asker }) => asker === name)) }])));
    keep(cells);
    assert.deepEqual(cells.filter(({ count, told }) => count !== 1 || !told).map(describe), []);
  });

test('two people behind one key whose chats begin alike never see a word of each other', async () => {
  const said = [['system', 'Be short.'], ['user', 'How do I begin?'], ['assistant', 'With a question.']].map(([role, content]) => ({ role, content }));
  const pairs = ASKERS.flatMap((asker) => WAYS.map((way) => ({ ...asker, ...way, asker: asker.name })));
  const wrong = [];
  await inParallel(pairs, async (asker) => {
    const people = [{ words: [], told: [] }, { words: [], told: [] }];
    const [ann, bob] = people;
    const say = async (person, ending, before = said) => {
      const { reference, told } = await ask({ ...asker, ending, said: before });
      person.words.push(reference, ...stage.bank.ledger.receipts(reference));
      person.told.push(told);
    };
    for (const ending of ['500', 'lost', 'well']) {
      await say(ann, ending);
      await say(bob, 'well');
    }
    // They ask the same, are told the same, and go on; what was called for each of them is not in what they show.
    for (const askers of [people, [ann]]) {
      const reference = newReference();
      for (const person of askers) {
        const { told } = await ask({ ...asker, ending: 'alike', said, reference });
        person.told.push(told);
        person.words.push(stage.bank.ledger.receipts(reference).at(-1));
      }
      const shown = [...said, { role: 'user', content: question({ reference, ending: 'alike' }) }, { role: 'assistant', content: 'It is done.' }];
      await Promise.all([say(bob, 'well', shown), askers.length > 1 && say(ann, 'well', shown)]);
      await say(ann, 'well', shown);
    }
    const knows = (text, { words }) => words.some((word) => text.includes(word));
    const mixed = stage.model.requests.filter((sent) => people.every((person) => knows(sent, person)));
    const isTold = ann.told.some((text) => knows(text, bob)) || bob.told.some((text) => knows(text, ann));
    // The token is one person's, whose chat goes on where its transcript fits: so this test sees what it looks for.
    if (isTold || mixed.length > 0 !== (asker.credential === 'token')) wrong.push([asker, mixed[0], ann, bob]);
    if (!bob.told.every((text) => /^text: (The receipt|It is done)/.test(text))) wrong.push([asker, bob.told]);
  });
  assert.deepEqual(wrong, []);
});

const keep = (cells) => process.env.CELLS && cells.forEach((cell) => appendFileSync(process.env.CELLS, `${JSON.stringify(cell)}\n`));
const newReference = () => `r${++references}-${crypto.randomUUID().slice(0, 8)}`;

/** Asks for a transfer, and says how the client ended. */
async function ask({ client, group, credential, stream, ending, tool, seconds, headers = {}, said = [], reference = newReference() }) {
  const isLost = ending === 'lost';
  const asked = [...said, { role: 'user', content: question({ reference, tool, seconds, ending: isLost ? 'slow' : ending }) }];
  const wire = isLost ? await startWire(group ? stage.proxyOrigin : stage.origin) : undefined;
  if (wire) stage.model.called.once(reference, () => wire.cut());
  const began = Date.now();
  const told = await Promise.race([
    CLIENTS[client]({ ...place(group, credential), ...(wire && { baseURL: `${wire.origin}/v1` }), headers, ...(['slow', 'late'].includes(ending) && { timeout: PATIENCE }) }, asked, stream)
      .then((text) => text && `text: ${text}`, (error) => `error: ${error.status ?? error.statusCode ?? ''} ${error.name} ${error.message}`.slice(0, 300)),
    sleep(240_000),
  ]);
  wire?.close();
  return { reference, told, took: Date.now() - began };
}

const place = (group, credential) => group
  ? { baseURL: `${stage.proxyOrigin}/v1`, model: `${group}-${credential}`, apiKey: PROXY_KEY }
  : { baseURL: `${stage.origin}/v1`, model: 'bank', apiKey: stage.credentials[credential] };

/** How often each way of asking has called, and whether it ended with an error or a text. */
const summary = (cells) => `${cells.map(({ count }) => count).join('')} ${cells.map(({ told }) => told?.[0] ?? '-').join('')}`;
const describe = ({ asker, credential, stream, ending, tool, count, told }) =>
  `${asker}, ${credential}, ${stream ? 'streamed' : 'whole'}, ${ending}${tool ? `, ${tool}` : ''}: ${count}; ${told}`;

async function inParallel(items, work, atOnce = AT_ONCE) {
  const left = [...items];
  const worker = async () => {
    while (left.length) await work(left.shift());
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker));
}
