/**
 * Who is signed in. A provider's tokens are in memory: after a reload the provider is asked again, without a
 * question to the user. A pasted token stays in this tab (`sessionStorage`) until the tab closes.
 */
import { createContext, type ReactNode, startTransition, useCallback, useContext, useEffect, useMemo, useRef, useState } from 'react';
import { api, asError, credential, read, Refused, type Schemas } from '../api/client';
import { queries } from '../api/queries';
import { IS_PANE, TOKEN } from '../early';
import type { Provider, Tokens } from './oidc';
import { pageAddress, tenantOfPage } from './tenant';

const DEMO = 'chatelaine.demo';
/** The provider at which this tab signed in. */
const PROVIDER = 'chatelaine.provider';

/** The library for OpenID Connect is loaded where it is used. */
const oidc = () => import('./oidc');

export type Me = Schemas['Me'];

/** Whom one can be in the demo: by person, a token, and for some a token for the notes. */
interface Demo {
  people: Record<string, string>;
  notes: Record<string, string>;
}

/** Where there is no demo, there are no people. */
const NO_DEMO: Demo = { people: {}, notes: {} };

interface Session {
  me: Me | null;
  /** It is not known yet who is signed in. */
  isChecking: boolean;
  demo: Demo;
  providers: Provider[];
  /** The API ended the session. */
  hasEnded: boolean;
  /** Why the provider did not sign the user in. */
  error: Error | undefined;
  signIn: (token: string) => Promise<void>;
  signInAt: (provider: Provider) => Promise<void>;
  signOut: () => void;
}

const Context = createContext<Session | null>(null);

/** The link of a demo has a key in its fragment, which leaves the address at once. */
function demoKey(): string {
  const found = /^#demo=([0-9a-f]+)$/.exec(window.location.hash)?.[1];
  if (found) {
    sessionStorage.setItem(DEMO, found);
    history.replaceState(null, '', pageAddress());
  }
  return found ?? sessionStorage.getItem(DEMO) ?? '';
}

async function askForDemo(): Promise<Demo> {
  const key = demoKey();
  if (!key) return NO_DEMO;
  const response = await fetch('/v1/demo/people', { headers: { Authorization: `Bearer ${key}` } });
  return response.ok ? ((await response.json()) as Demo) : NO_DEMO;
}

/** Signs the person of a pane in. The token is not kept: the storage is that of the tab, in which somebody else is signed in. */
async function enterPane(people: Demo['people'], enter: (token: string) => Promise<void>): Promise<boolean> {
  const token = people[new URLSearchParams(window.location.search).get('as') ?? ''];
  if (token) await enter(token);
  return token !== undefined;
}

/** A token that the API refuses is dropped; without a network it is tried again. */
async function signInAgain(token: string, signIn: (token: string) => Promise<void>): Promise<boolean> {
  for (;;) {
    try {
      await signIn(token);
      return true;
    } catch (error) {
      if (error instanceof Refused && error.status < 500) return false;
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

const nameOf = (provider: Provider) => `${provider.issuer} ${provider.client_id}`;

/** What a provider has sent somebody back with. Who has signed in at one before is sent there again. */
async function returnFromProvider(items: Provider[]) {
  const before = items.find((provider) => nameOf(provider) === sessionStorage.getItem(PROVIDER));
  sessionStorage.removeItem(PROVIDER);
  if (!before && !new URLSearchParams(window.location.search).has('state')) return undefined;
  const { beginSignIn, finishSignIn } = await oidc();
  const finished = await finishSignIn(items);
  if (!finished && before) await beginSignIn(before, true);
  return finished;
}

/** Seconds before the end of a token at which it is replaced. */
const EARLY = 60;
/** The longest delay of a timer, in milliseconds. */
const MAX_DELAY = 2_000_000_000;

/** Replaces the token of a provider before its end, where the provider gave a refresh token. */
function useRenewal() {
  const timer = useRef(0);
  const stop = useCallback(() => clearTimeout(timer.current), []);
  const keepFresh = useCallback((provider: Provider, { lifetime, refreshToken }: Tokens) => {
    if (!lifetime || !refreshToken) return;
    const delay = Math.min(Math.max(lifetime - EARLY, 1) * 1000, MAX_DELAY);
    const renew = async () => {
      const tokens = await (await oidc()).refreshTokens(provider, refreshToken);
      credential.token = tokens.token;
      keepFresh(provider, tokens);
    };
    // Without a new token the API says when the old one has ended.
    timer.current = window.setTimeout(() => void renew().catch(() => {}), delay);
  }, []);
  return { keepFresh, stop };
}

export function SessionProvider({ children }: { children: ReactNode }) {
  const [me, setMe] = useState<Me | null>();
  const [hasEnded, setHasEnded] = useState(false);
  const [demo, setDemo] = useState(NO_DEMO);
  const [providers, setProviders] = useState<Provider[]>([]);
  const [error, setError] = useState<Error>();
  const { keepFresh, stop } = useRenewal();

  const forget = useCallback(() => {
    stop();
    credential.token = '';
    sessionStorage.removeItem(TOKEN);
    setMe(null);
    queries.clear();
  }, [stop]);
  const signOut = useCallback(() => {
    forget();
    // Also what was typed and not sent: the next person of this tab may be another one.
    for (const key of Object.keys(sessionStorage)) if (key !== DEMO) sessionStorage.removeItem(key);
    setHasEnded(false);
    window.location.hash = '';
  }, [forget]);
  const enter = useCallback(async (token: string) => {
    credential.token = token;
    const known = await read(api.GET('/v1/me'));
    setHasEnded(false);
    setError(undefined);
    // The pages are many: they are made in pieces, between which the browser can do something else.
    startTransition(() => setMe(known));
  }, []);
  const signIn = useCallback(async (token: string) => {
    await enter(token);
    sessionStorage.setItem(TOKEN, token);
  }, [enter]);
  const signInAt = useCallback(async (provider: Provider) => (await oidc()).beginSignIn(provider, false), []);
  useEffect(() => {
    credential.onSignedOut = () => {
      if (credential.token) setHasEnded(true);
      forget();
    };
    const asked = askForDemo();
    const start = async () => {
      if (IS_PANE) return enterPane((await asked).people, enter);
      const stored = sessionStorage.getItem(TOKEN);
      const tenant = tenantOfPage();
      const listed = read(api.GET('/v1/sign-in', { params: { query: tenant ? { tenant } : {} } }));
      listed.then(({ items }) => setProviders(items), () => {});
      if (stored) return signInAgain(stored, signIn);
      const finished = await returnFromProvider((await listed).items);
      if (!finished) return false;
      await enter(finished.tokens.token);
      sessionStorage.setItem(PROVIDER, nameOf(finished.provider));
      keepFresh(finished.provider, finished.tokens);
      return true;
    };
    asked.then(setDemo, () => {});
    const fail = (failure: unknown) => {
      setError(asError(failure));
      return false;
    };
    void start().catch(fail).then((isIn) => isIn || setMe(null));
  }, [forget, signIn, enter, keepFresh]);

  const session = useMemo(
    () => ({ me: me ?? null, isChecking: me === undefined, demo, providers, hasEnded, error, signIn, signInAt, signOut }),
    [me, demo, providers, hasEnded, error, signIn, signInAt, signOut],
  );
  return <Context value={session}>{children}</Context>;
}

export function useSession(): Session {
  const session = useContext(Context);
  if (!session) throw new Error('a component outside of SessionProvider asks for the session');
  return session;
}

/** For the pages behind the sign-in. */
export function useMe(): Me {
  const { me } = useSession();
  if (!me) throw new Error('nobody is signed in');
  return me;
}
