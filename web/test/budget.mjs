// The scripts that the page loads at its start are at most 220 KiB, compressed.
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

const DIST = join(import.meta.dirname, '../dist');
const MOST = 220 * 1024;

const page = readFileSync(join(DIST, 'index.html'), 'utf8');
const names = [...page.matchAll(/\/web\/([\w.-]+\.js)/g)].map((found) => found[1]);
const size = names.reduce((sum, name) => sum + statSync(join(DIST, `${name}.gz`)).size, 0);
if (names.length === 0) throw new Error('the page names no scripts; run web/build.sh');
if (size > MOST) throw new Error(`the page loads ${size} bytes of scripts at its start; at most ${MOST} may be`);
console.log(`scripts at the start: ${size} of ${MOST} bytes`);
