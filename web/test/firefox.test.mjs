// The demo's minute in a second browser: Firefox, which puppeteer drives by WebDriver BiDi.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import puppeteer from 'puppeteer-core';
import { AXE, AXE_OPTIONS, SHOTS, startStage, WITHOUT_MODEL, wordsOf } from './support.mjs';

/** Firefox's own numbers for `prefers-color-scheme`. */
const SCHEMES = { dark: 0, light: 1 };
const WAYS = [
  { locale: 'en', scheme: 'light', width: 1440, height: 900 },
  { locale: 'es', scheme: 'dark', width: 1440, height: 900 },
  { locale: 'fr', scheme: 'light', width: 360, height: 740 },
];

let stage;
before(async () => {
  stage = await startStage({ settings: WITHOUT_MODEL });
});
after(() => stage?.stop());

const firefoxPath = () => process.env.FIREFOX ?? execFileSync('sh', ['-c', 'command -v firefox-esr || command -v firefox'], { encoding: 'utf8' }).trim();

function openFirefox({ locale, scheme }) {
  return puppeteer.launch({
    browser: 'firefox',
    executablePath: firefoxPath(),
    extraPrefsFirefox: { 'intl.accept_languages': locale, 'layout.css.prefers-color-scheme.content-override': SCHEMES[scheme] },
  });
}

/** As in the other tests: axe finds nothing, and a picture. */
async function check(page, name) {
  await page.screenshot({ path: join(SHOTS, `${name}.png`) });
  await page.evaluate(`${AXE};0`);
  const { violations } = await page.evaluate((options) => globalThis.axe.run(options), AXE_OPTIONS);
  assert.deepEqual(violations.map(({ id, nodes }) => `${name}: ${id}: ${nodes.map((node) => node.html).join(' ')}`), []);
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(content <= window, `${name} is ${content} wide`);
}

for (const way of WAYS) {
  const name = `firefox-${way.locale}-${way.scheme}-${way.width}`;
  test(`the minute: ${name}`, async () => {
    const say = wordsOf(way.locale);
    const browser = await openFirefox(way);
    try {
      const page = await browser.newPage();
      await page.setViewport({ width: way.width, height: way.height });
      page.on('pageerror', (error) => stage.complaints.push(error.message));
      page.on('console', (line) => line.type() === 'error' && stage.complaints.push(line.text()));
      const press = (text, within = page) => within.locator(`::-p-text(${text})`).click();
      await page.goto(stage.link);
      await press(say('person.finance'));
      await press(say('guide.ask'));
      await page.waitForSelector('.tool .state.succeeded');
      await press(say('guide.pay'));
      await page.waitForSelector('.waiting .code');
      await press(say('guide.approve'));
      const pane = await (await page.waitForSelector('iframe')).contentFrame();
      await pane.waitForSelector('.decision button:not([aria-disabled])');
      await check(page, `${name}-waiting`);
      await pane.locator('.decision button').click();
      await pane.waitForSelector('.state.succeeded');
      await page.waitForFunction(() => document.querySelectorAll('.waiting').length === 0);
      await press(say('guide.connect'));
      const token = await (await page.waitForSelector('.guide code')).evaluate((element) => element.textContent);
      await page.locator('input[type=password]').fill(token);
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelectorAll('.guide .step svg').length === 4);
      await page.waitForFunction(() => document.querySelector('input[type=password]') === null);
      await check(page, `${name}-connected`);
      // The tab knows who it is when it is loaded again.
      await page.reload();
      await page.waitForSelector('.top nav');
      assert.equal(await page.evaluate(() => document.documentElement.lang), way.locale);
    } finally {
      await browser.close();
    }
  });
}
