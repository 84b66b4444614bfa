/** The address of what is shown is the fragment, `#/approvals`: the server knows one page. */
import { useSyncExternalStore } from 'react';

export type Page = 'chat' | 'approvals' | 'connections' | 'admin';

export interface Route {
  page: Page;
  /** What follows the page: a conversation, an approval, an agent, a part of the administration. */
  id: string;
  /** What follows it in the administration: an entry, a user. */
  item: string;
}

const PAGES: Page[] = ['chat', 'approvals', 'connections', 'admin'];

function parse(hash: string): Route {
  const [page = '', id = '', item = ''] = hash.replace(/^#\/?/, '').split('/');
  const known = PAGES.find((name) => name === page);
  if (!known) return { page: 'chat', id: '', item: '' };
  return { page: known, id: decodeURIComponent(id), item: decodeURIComponent(item) };
}

const subscribe = (onChange: () => void) => {
  window.addEventListener('hashchange', onChange);
  return () => window.removeEventListener('hashchange', onChange);
};

export function useRoute(): Route {
  return parse(useSyncExternalStore(subscribe, () => window.location.hash));
}

export const href = (page: Page, ...rest: string[]) =>
  `#/${[page, ...rest.filter(Boolean).map(encodeURIComponent)].join('/')}`;

export function go(page: Page, ...rest: string[]) {
  window.location.hash = href(page, ...rest);
}
