import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import react from '@vitejs/plugin-react';
import { defineConfig, type Plugin } from 'vite';
import { appManifest } from './app-manifest.ts';
import { radixStyles } from './radix-styles.ts';

const OUT = join(import.meta.dirname, 'dist');

/** Empties the folder, all but the file that keeps it in git, and puts two compressed copies beside each file. */
function embeddable(): Plugin {
  return {
    name: 'embeddable',
    apply: 'build',
    buildStart() {
      for (const name of readdirSync(OUT)) if (name !== '.gitignore') rmSync(join(OUT, name));
    },
    writeBundle() {
      for (const name of readdirSync(OUT)) {
        if (name === '.gitignore') continue;
        const file = readFileSync(join(OUT, name));
        writeFileSync(join(OUT, `${name}.gz`), gzipSync(file, { level: 9 }));
        writeFileSync(join(OUT, `${name}.br`), brotliCompressSync(file));
      }
    },
  };
}

/** The script that asks early is no part of the others: it runs as soon as it is here. They come after the styles, which the first paint needs. */
function early(): Plugin {
  const LINK = /\s*<link rel="modulepreload"( crossorigin href="\/web\/early-[\w-]+\.js")>/;
  return {
    name: 'early',
    transformIndexHtml: {
      order: 'post',
      handler(page) {
        const found = LINK.exec(page);
        if (!found?.[1]) return page;
        const later = page.replace(LINK, '').replaceAll(/(?<=<script type="module"|<link rel="modulepreload")/g, ' fetchpriority="low"');
        return later.replace('<script', `<script type="module" async${found[1].replace('href', 'src')}></script>\n    <script`);
      },
    },
  };
}

/** The chat library can speak to its maker's service. The page must not: that part is left out. */
function withoutCloud(): Plugin {
  const EMPTY = '\0assistant-cloud';
  return {
    name: 'without-cloud',
    enforce: 'pre',
    resolveId: (name) => (/^assistant-cloud(\/|$)/.test(name) ? { id: EMPTY, moduleSideEffects: false } : null),
    load: (id) => (id === EMPTY ? 'module.exports = {};' : null),
  };
}

/** The chat library gives its parts away in objects, with all that the page leaves unused. As modules they come one by one. */
function oneByOne(): Plugin {
  return {
    name: 'one-by-one',
    enforce: 'pre',
    transform: {
      filter: { id: /@assistant-ui\/react\/dist\/index\.js$/ },
      handler: (code) => ({ code: code.replace(/import \{ (\w+_exports) \} from/g, 'import * as $1 from'), map: null }),
    },
  };
}

export default defineConfig({
  base: '/web/',
  plugins: [early(), withoutCloud(), oneByOne(), react(), radixStyles(), appManifest(), embeddable()],
  // The names are flat: the program serves one folder.
  build: { outDir: OUT, emptyOutDir: false, assetsDir: '', assetsInlineLimit: 0, chunkSizeWarningLimit: 1000, modulePreload: { polyfill: false },
    rolldownOptions: { output: { codeSplitting: { groups: [{ name: 'early', test: /src\/early\.ts$/ }, { name: 'libraries', test: /node_modules/, tags: ['$initial'] }] } } } },
  // `npm run dev` beside a running demo: the page is at http://localhost:5173/web/.
  server: { proxy: { '/v1': process.env.CHATELAINE_URL ?? 'http://127.0.0.1:8080' } },
});
