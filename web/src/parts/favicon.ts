/** The icon of the tab, with a number on it while something waits. */

const FONT = 'font-family="system-ui,sans-serif" font-size="30" font-weight="700" text-anchor="middle"';

let plain: string | undefined;

const badged = (count: string) => `data:image/svg+xml,${encodeURIComponent(
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect width="64" height="64" rx="14" fill="#17607f"/><g fill="none" stroke="#fff" stroke-width="5" stroke-linecap="round" stroke-linejoin="round"><circle cx="23" cy="23" r="10"/><path d="m30 30 18 18M39 39l6-6M46 46l4-4"/></g><circle cx="44" cy="20" r="20" fill="#c62a2f"/><text x="44" y="31" fill="#fff" ${FONT}>${count}</text></svg>`,
)}`;

export function showBadge(count: number) {
  const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
  if (link) {
    plain ??= link.href;
    const wanted = count > 0 ? badged(count > 9 ? '9+' : String(count)) : plain;
    if (link.href !== wanted) link.href = wanted;
  }
  // The icon of an installed page.
  if ('setAppBadge' in navigator) void navigator.setAppBadge(count).catch(() => {});
}
