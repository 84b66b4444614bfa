/** The address of what is shown is the fragment, `#/approvals`: the server knows one page. */
import { useSyncExternalStore } from 'react';

export type Page = 'chat' | 'approvals' | 'connections' | 'admin';

export interface Route {
  page: Page;
  /** What follows the page: a conversation, an approval, an agent. */
  id: string;
}

const PAGES: Page[] = ['chat', 'approvals', 'connections', 'admin'];

function parse(hash: string): Route {
  const [page = '', id = ''] = hash.replace(/^#\/?/, '').split('/');
  const known = PAGES.find((name) => name === page);
  return { page: known ?? 'chat', id: known ? decodeURIComponent(id) : '' };
}

const subscribe = (onChange: () => void) => {
  window.addEventListener('hashchange', onChange);
  return () => window.removeEventListener('hashchange', onChange);
};

export function useRoute(): Route {
  return parse(useSyncExternalStore(subscribe, () => window.location.hash));
}

export const href = (page: Page, id = '') => `#/${page}${id ? `/${encodeURIComponent(id)}` : ''}`;

export function go(page: Page, id = '') {
  window.location.hash = href(page, id);
}
