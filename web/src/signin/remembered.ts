/**
 * What is remembered of signing in at a provider. A tab remembers the sign-in that it began and the provider at
 * which it signed in; the browser remembers the last provider of each page, and that somebody signed out. No token
 * is among it.
 *
 * A tab may ask a provider silently who is there: again when it is loaded again, and once when it is new. No tab
 * asks after a sign-out, until somebody signs in again.
 */
import type { Schemas } from '../api/client';
import { pageAddress, tenantOfPage } from './tenant';

export type Provider = Schemas['SignInProviderView'];

/** A sign-in that began in this tab, while the browser is at the provider. */
export interface Pending {
  issuer: string;
  clientId: string;
  verifier: string;
  state: string;
  nonce: string;
  /** The page to return to, with its fragment. */
  page: string;
  isSilent: boolean;
}

/** With what a provider sent the browser back, and the sign-in of this tab that it ends, if there is one. */
export interface Answer {
  address: URL;
  pending: Pending | null;
}

const PENDING = 'chatelaine.oidc';
/** In a tab, the provider at which it signed in; in the browser, the last one of each tenant's page. */
const PROVIDER = 'chatelaine.provider';
/** This tab has asked a provider silently. */
const ASKED = 'chatelaine.asked';
/** Since when a tab is away with a silent question, in milliseconds. */
const AWAY = 'chatelaine.away';
const SIGNED_OUT = 'chatelaine.signed-out';
/** After this time, in milliseconds, a silent question does not come back: the provider shows a page of its own. */
const PATIENCE = 30_000;

const nameOf = (provider: Provider) => `${provider.issuer} ${provider.client_id}`;
const lastOfPage = () => `${PROVIDER}:${tenantOfPage()}`;

/** Call this last, before the tab leaves for the provider. */
export function rememberPending(pending: Pending) {
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  if (!pending.isSilent) return;
  sessionStorage.setItem(ASKED, 'yes');
  localStorage.setItem(AWAY, String(Date.now()));
}

/** What a provider answered, once. The page has its address again afterwards, with the tenant and the fragment. */
export function takeAnswer(): Answer | undefined {
  const address = new URL(window.location.href);
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? 'null') as Pending | null;
  sessionStorage.removeItem(PENDING);
  if (!address.searchParams.has('state')) return undefined;
  localStorage.removeItem(AWAY);
  history.replaceState(null, '', pending?.page ?? pageAddress());
  return { address, pending };
}

export function rememberSignIn(provider: Provider) {
  sessionStorage.setItem(PROVIDER, nameOf(provider));
  localStorage.setItem(lastOfPage(), nameOf(provider));
  localStorage.removeItem(SIGNED_OUT);
}

/** Forgets also what was typed and not sent: the next person of this tab may be another one. */
export function rememberSignOut() {
  sessionStorage.clear();
  localStorage.setItem(SIGNED_OUT, 'yes');
}

/**
 * The provider that this tab may ask silently now. A new tab asks the one at which this browser signed in last, or the
 * only one. It asks none while an earlier question has not come back: otherwise each link to this page would end on
 * a page of the provider.
 */
export function providerToAsk(providers: Provider[]): Provider | undefined {
  const find = (name: string | null) => providers.find((provider) => nameOf(provider) === name);
  const before = find(sessionStorage.getItem(PROVIDER));
  sessionStorage.removeItem(PROVIDER);
  if (localStorage.getItem(SIGNED_OUT)) return undefined;
  if (before) return before;
  const away = localStorage.getItem(AWAY);
  if (sessionStorage.getItem(ASKED) || (away && Date.now() - Number(away) > PATIENCE)) return undefined;
  return find(localStorage.getItem(lastOfPage())) ?? (providers.length === 1 ? providers[0] : undefined);
}
