// Lighthouse on the chat page with a conversation in it: performance and accessibility are at least 95 of 100, and
// the page can be used within a second on the throttled profile. `make lighthouse` runs it.
import assert from 'node:assert/strict';
import lighthouse, { desktopConfig } from 'lighthouse';
import puppeteer from 'puppeteer-core';
import { chromiumPath, startStage } from './support.mjs';

const LEAST = 95;
const USABLE_WITHIN = 1000;
/** A busy machine makes a page slow that is not: the best of these counts. */
const ATTEMPTS = 3;

/** A conversation with a table, a tool call and a request. */
async function startConversation(stage, token) {
  const { id } = await stage.call(token, 'POST', '/v1/conversations', { agent: 'bank' });
  for (const text of ['show a table', 'what is the rate?', 'please pay acme']) {
    const { run } = await stage.call(token, 'POST', `/v1/conversations/${id}/messages`, { text });
    for (;;) {
      const { status } = await stage.call(token, 'GET', `/v1/runs/${run.id}`);
      if (status !== 'queued' && status !== 'running') break;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  return id;
}

/** A page of which Lighthouse keeps the sign-in. */
async function measure(browser, stage, token, address) {
  const page = await browser.newPage();
  await page.goto(`${stage.origin}/healthz`);
  await page.evaluate((value) => sessionStorage.setItem('chatelaine.token', value), token);
  const options = { disableStorageReset: true, onlyCategories: ['performance', 'accessibility'], logLevel: 'error' };
  const { lhr } = await lighthouse(address, options, desktopConfig, page);
  await page.close();
  assert.equal(lhr.runtimeError, undefined);
  return lhr;
}

const stage = await startStage();
const browser = await puppeteer.launch({ executablePath: chromiumPath(), args: process.getuid() === 0 ? ['--no-sandbox'] : [] });
try {
  const token = await stage.token('finance');
  const address = `${stage.origin}/#/chat/${await startConversation(stage, token)}`;
  let best;
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    const lhr = await measure(browser, stage, token, address);
    const [performance, accessibility] = ['performance', 'accessibility'].map((name) => Math.round(lhr.categories[name].score * 100));
    const usable = Math.round(lhr.audits.interactive.numericValue);
    console.log(`performance ${performance}, accessibility ${accessibility}, usable after ${usable} ms`);
    if (!best || performance > best.performance) best = { performance, accessibility, usable, lhr };
    if (best.performance >= LEAST && best.usable <= USABLE_WITHIN) break;
  }
  for (const audit of Object.values(best.lhr.audits))
    if (audit.score !== null && audit.score < 0.9) console.log(`  ${audit.id}: ${audit.displayValue ?? audit.score}`);
  assert.ok(best.performance >= LEAST, `performance is ${best.performance}`);
  assert.ok(best.accessibility >= LEAST, `accessibility is ${best.accessibility}`);
  assert.ok(best.usable <= USABLE_WITHIN, `the page can be used after ${best.usable} ms`);
} finally {
  await browser.close();
  await stage.stop();
}
