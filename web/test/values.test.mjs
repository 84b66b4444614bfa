// What a person is asked to approve cannot be mistaken for something else: different JSON is different text.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { createElement } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { createServer } from 'vite';

// What the modules of the page look for in a browser when they are loaded.
const page = { location: { hash: '', search: '' }, getItem: () => null, addEventListener: () => {}, matchMedia: () => ({}) };
Object.assign(globalThis, { window: page, document: page, sessionStorage: page, localStorage: page });

let [sources, valueText, nameTexts, keepDigits, writeJson, Values, sentenceOf] = [];
before(async () => {
  sources = await createServer({ root: join(import.meta.dirname, '..'), configFile: false, appType: 'custom', logLevel: 'error', server: { middlewareMode: true, ws: false, watch: null }, optimizeDeps: { noDiscovery: true } });
  ({ valueText, nameTexts } = await sources.ssrLoadModule('/src/parts/values.ts'));
  ({ keepDigits, writeJson } = await sources.ssrLoadModule('/src/api/digits.ts'));
  ({ sentenceOf } = await sources.ssrLoadModule('/src/parts/CallSentence.tsx'));
  ({ Values } = await sources.ssrLoadModule('/src/parts/parts.tsx'));
});
after(() => sources?.close());

test('a text that could be read as another value stands in quotation marks', () => {
  for (const value of [null, true, false, 5, -1.5, 1e21]) {
    assert.equal(valueText(value), JSON.stringify(value));
    assert.equal(valueText(String(value)), JSON.stringify(String(value)));
  }
  assert.deepEqual(['', [], {}].map(valueText), ['""', '[]', '{}']);
  for (const text of ['[]', '{}', '{"a":1}', '"null"', '5.00', '1,000', '+5', '0x10', 'NaN', 'NULL', 'True', '1. first'])
    assert.equal(valueText(text), JSON.stringify(text));
  for (const text of ['٥', '５', 'ｎｕｌｌ', '“null”', '10²', '5O', 'l0', 'nuIl']) assert.equal(valueText(text), `"${text}"`);
});

test('other texts stand as they are', () => {
  for (const text of ['acme', 'Rent for May, 2 rooms', 'C:\\new\\table', 'he said "yes"', '2026-11-25', '+49 30 x', 'größer als 5 €', 'Привет, мир', '你好，世界', 'שלום', 'naïve café', '👩\u200d💻 ❤\ufe0f 👍🏽', 'wait…'])
    assert.equal(valueText(text), text);
});

test('blanks, line breaks and what nobody sees are written out', () => {
  for (const [text, shown] of [
    [' 5', '" 5"'], ['acme ', '"acme "'], [' ', '" "'], ['a  b', '"a  b"'], ['5\t5', '"5\\t5"'], ['acme\u00a0', '"acme\\u00a0"'], ['a\u3000b', '"a\\u3000b"'],
    ['1\n\nArguments\n', '"1\\n\n\\n\nArguments\\n"'], ['a\r\nb', '"a\\r\\n\nb"'], ['a\u202eb\u200b\u2800\u3164', '"a\\u202eb\\u200b\\u2800\\u3164"'], ['a\u0007', '"a\\u0007"'],
    ['a\u{e0041}', '"a\\udb40\\udc41"'], ['a\ud800', '"a\\ud800"'], ['a\ufe0f', '"a\\ufe0f"'], ['a\u200db', '"a\\u200db"'], ['\ue000', '"\\ue000"'], ['\\n\n', '"\\\\n\\n"'],
  ]) assert.equal(valueText(text), shown);
});

test('letters that pass for others are written out', () => {
  for (const [text, shown] of [
    ['\u0430cme', '"\\u0430cme"'], ['pay \u0430cme now', '"pay \\u0430cme now"'], ['\u0430\u0441\u0435', '"\\u0430\\u0441\\u0435"'], ['cafe\u0301', '"cafe\\u0301"'], ['\u212a', '"\\u212a"'],
    ['nu\u04cf\u04cf', '"nu\\u04cf\\u04cf"'], ['1\u09ea', '"1\\u09ea"'],
  ]) assert.equal(valueText(text), shown);
});

test('the names of members are told apart', () => {
  const names = ['amount', ' amount', 'amount\u00a0', '\u0430mount', 'amount\u200b'];
  assert.deepEqual(nameTexts(names), ['"amount"', '" amount"', '"amount\\u00a0"', '"\\u0430mount"', '"amount\\u200b"']);
  assert.deepEqual(nameTexts(['from_account', 'x-1.y', '', '5', '1.', 'größe', 'a b', 'a"b']), ['from_account', 'x-1.y', '""', '"5"', '"1."', '"größe"', '"a b"', '"a\\"b"']);
  assert.deepEqual(nameTexts(['total', 'tota1', 'amount', 'arnount']), ['"t\\u006fta\\u006c"', '"tota\\u0031"', '"a\\u006dount"', '"a\\u0072\\u006eount"'].map((text) => text.replace('\\u006fta', 'ota')));
  assert.deepEqual(nameTexts(['оса', 'oca']), ['"\\u043e\\u0441\\u0430"', '"oca"']);
});

test('different values never have one text', () => {
  const pieces = ['', 'a', '\u0430', ' ', '\u00a0', '\t', '\n', '\\', '"', '\\n', '\\u00a0', '5', '[', ']', 'null', '\u200b', 'e\u0301', '\u00e9'];
  const texts = pieces.flatMap((one) => pieces.flatMap((two) => pieces.map((three) => one + two + three)));
  const values = [...new Set(texts), null, 5, 55, 555, [], {}];
  assert.equal(new Set(values.map(valueText)).size, values.length);
  const names = [...new Set(texts)];
  assert.equal(new Set(nameTexts(names)).size, names.length);
});

test('a number keeps its digits, and a text with these digits is a text', () => {
  const json = '{"a":12345678901234567890,"b":"12345678901234567890","c":1e400,"d":[0.1,5]}';
  const value = JSON.parse(keepDigits(json));
  assert.deepEqual([value.a, value.b, value.c].map(valueText), ['12345678901234567890', '"12345678901234567890"', '1e400']);
  assert.equal(writeJson(value), json);
});

test('a long text takes no time', () => {
  for (const text of [' '.repeat(1e5), '1'.repeat(1e5), '\u0430a'.repeat(1e5), 'e\u0301'.repeat(1e5), '1,'.repeat(1e5) + 'x', '\u200d'.repeat(1e5)]) {
    const begun = Date.now();
    valueText(text);
    nameTexts([text]);
    assert.ok(Date.now() - begun < 2000, text.slice(0, 4));
  }
});

test('a card shows names, items and values in this way', () => {
  const shown = renderToStaticMarkup(createElement(Values, { value: { list: [], ' a': ['', 'x', {}, { b: null }], t: 'true' } }));
  assert.deepEqual([...shown.matchAll(/<(?:bdi|code)[^>]*>([^<]*)</g)].map(([, text]) => text.replaceAll('&quot;', '"')), ['list', '[]', '" a"', '""', 'x', '{}', 'b', 'null', 't', '"true"']);
});

test('no value passes for a part of the sentence that it stands in', () => {
  const summary = 'Send {amount} {currency} to {to}';
  const say = (given, tool = 'send_money') => {
    const { pieces, rest } = sentenceOf({ tool, summary, arguments: given });
    return [pieces.map(({ text }) => text).join(''), Object.keys(rest)];
  };
  const payment = { amount: '12.50', currency: 'EUR', to: 'acme' };
  assert.deepEqual(say({ ...payment, from_account: 'current' }), ['Send 12.50 EUR to acme', ['from_account']]);
  assert.deepEqual(say({ ...payment, to: 'acme, approved by Mona' }), ['Send 12.50 EUR to “acme, approved by Mona”', []]);
  assert.deepEqual(say({ ...payment, to: '\u0430cme' }), ['Send 12.50 EUR to "\\u0430cme"', []]);
  assert.deepEqual(say({ ...payment, to: '{amount}' }), ['Send 12.50 EUR to "{amount}"', []]);
  // What does not fit into a sentence stands below the name of the tool, with all the rest.
  for (const to of [undefined, null, ['acme'], { id: 'acme' }, 'a'.repeat(60), 'acme\nand more'])
    assert.deepEqual(say({ ...payment, to }), ['Send money', ['amount', 'currency', 'to']]);
  assert.deepEqual(say({ amount: 5 }, 's\u0435nd'), ['"s\\u0435nd"', ['amount']]);
});
