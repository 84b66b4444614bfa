/** What makes the page one that can be installed: its icons and its manifest, in files whose names change with their content. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Plugin } from 'vite';

const ICONS = join(import.meta.dirname, 'icons');

interface File {
  fileName: string;
  source: string | Buffer;
}

function named(name: string, source: string | Buffer): File {
  const [stem, ending] = name.split('.');
  return { fileName: `${stem}-${createHash('sha256').update(source).digest('base64url').slice(0, 8)}.${ending}`, source };
}

const icon = (name: string) => named(name, readFileSync(join(ICONS, name)));

export function appManifest(): Plugin {
  const icons = { 'icon.svg': icon('icon.svg'), 'maskable.svg': icon('maskable.svg'), 'icon-192.png': icon('icon-192.png'), 'icon-512.png': icon('icon-512.png') };
  const iconOf = (name: keyof typeof icons, sizes: string, purpose = 'any') => ({ src: `/web/${icons[name].fileName}`, sizes, purpose });
  const manifest = named('manifest.webmanifest', JSON.stringify({
    // The page of a tenant is found again by src/early.ts.
    name: 'Chatelaine', short_name: 'Chatelaine', id: '/', start_url: '/', scope: '/', display: 'standalone', background_color: '#f9f9fb', theme_color: '#17607f',
    icons: [iconOf('icon.svg', 'any'), iconOf('maskable.svg', 'any', 'maskable'), iconOf('icon-192.png', '192x192'), iconOf('icon-512.png', '512x512')],
  }));
  return {
    name: 'app-manifest',
    apply: 'build',
    generateBundle() {
      for (const file of [...Object.values(icons), manifest]) this.emitFile({ type: 'asset', ...file });
    },
    transformIndexHtml: () => [
      { tag: 'link', attrs: { rel: 'icon', type: 'image/svg+xml', href: `/web/${icons['icon.svg'].fileName}` }, injectTo: 'head' },
      { tag: 'link', attrs: { rel: 'manifest', href: `/web/${manifest.fileName}` }, injectTo: 'head' },
    ],
  };
}
