/**
 * Who is signed in. A provider's tokens are in memory: after a reload and in a new tab the provider is asked, without
 * a question to the user. A pasted token stays in this tab (`sessionStorage`) until the tab closes.
 */
import { createContext, type ReactNode, startTransition, useCallback, useContext, useEffect, useMemo, useRef, useState } from 'react';
import { api, asError, credential, read, Refused, type Schemas } from '../api/client';
import { queries } from '../api/queries';
import { IS_LEAVING, IS_PANE, TOKEN } from '../early';
import type { Tokens } from './oidc';
import { type Answer, type Provider, providerToAsk, rememberSignIn, rememberSignOut, takeAnswer } from './remembered';
import { pageAddress, tenantOfPage } from './tenant';

/** Where a browser keeps the key of the demo, so that a new tab offers the people, too. */
const DEMO = 'chatelaine.demo';

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
    localStorage.setItem(DEMO, found);
    history.replaceState(null, '', pageAddress());
  }
  return found ?? localStorage.getItem(DEMO) ?? '';
}

async function askForDemo(): Promise<Demo> {
  const key = demoKey();
  if (!key) return NO_DEMO;
  const response = await fetch('/v1/demo/people', { headers: { Authorization: `Bearer ${key}` } });
  // The key of another demo is of no use.
  if (response.status === 401 || response.status === 404) localStorage.removeItem(DEMO);
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

/** The sign-in that a provider answered. Without one, leaves for the provider that may be asked silently, if there is one. */
async function signInByProvider(providers: Provider[], answer: Answer | undefined, demo: Promise<Demo>) {
  const finished = answer && (await (await oidc()).finishSignIn(providers, answer));
  if (finished) return finished;
  // Who has the link of the demo chooses a person.
  const { people } = await demo.catch(() => NO_DEMO);
  const provider = Object.keys(people).length === 0 ? providerToAsk(providers) : undefined;
  // Where a provider does not answer, the person signs in by hand, and sees why that fails.
  if (provider) await (await oidc()).beginSignIn(provider, true).catch(() => {});
  return undefined;
}

/** Seconds before the end of a token at which it is replaced. */
const EARLY = 60;
/** The longest delay of a timer, in milliseconds. */
const MAX_DELAY = 2_000_000_000;
/** The first and the longest pause after a renewal that failed, in milliseconds. */
const [FIRST_PAUSE, LAST_PAUSE] = [2_000, 60_000];

/**
 * Replaces the token of a provider before its end, where the provider gave a refresh token. What fails is tried again,
 * after a while and when the tab is shown or the network is back: a computer that slept has missed its timer.
 */
function useRenewal() {
  const end = useRef(() => {});
  const stop = useCallback(() => end.current(), []);
  const keepFresh = useCallback((provider: Provider, tokens: Tokens) => {
    end.current();
    if (!tokens.lifetime || !tokens.refreshToken) return;
    const { lifetime } = tokens;
    let refreshToken: string = tokens.refreshToken;
    let [timer, due, pause, isOver] = [0, 0, FIRST_PAUSE, false];
    const wait = (delay: number) => {
      due = Date.now() + delay;
      clearTimeout(timer);
      timer = window.setTimeout(() => void renew(), delay);
    };
    const waitForEnd = (lifetime: number) => wait(Math.min(Math.max(lifetime - EARLY, 1) * 1000, MAX_DELAY));
    let asked: Promise<boolean> | undefined;
    const renew = () => (asked ??= ask().finally(() => { asked = undefined; }));
    const ask = async (): Promise<boolean> => {
      const library = await oidc().catch(() => undefined);
      try {
        const renewed = await library?.refreshTokens(provider, refreshToken);
        if (!renewed || isOver) throw new Error('there is no other token');
        credential.token = renewed.token;
        refreshToken = renewed.refreshToken ?? refreshToken;
        pause = FIRST_PAUSE;
        waitForEnd(renewed.lifetime ?? lifetime);
        return true;
      } catch (error) {
        // The API says when the last token has ended.
        if (library?.isRefused(error)) end.current();
        if (!isOver) wait(pause);
        pause = Math.min(pause * 2, LAST_PAUSE);
        return false;
      }
    };
    const look = () => {
      const isShown = document.visibilityState === 'visible';
      if (isShown && (pause > FIRST_PAUSE || Date.now() >= due)) void renew();
    };
    document.addEventListener('visibilitychange', look);
    window.addEventListener('online', look);
    credential.renew = renew;
    end.current = () => {
      isOver = true;
      credential.renew = () => Promise.resolve(false);
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', look);
      window.removeEventListener('online', look);
    };
    waitForEnd(lifetime);
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
    rememberSignOut();
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
      if (IS_LEAVING) return new Promise<never>(() => {});
      const stored = sessionStorage.getItem(TOKEN);
      const answer = takeAnswer();
      const tenant = tenantOfPage();
      const listed = read(api.GET('/v1/sign-in', { params: { query: tenant ? { tenant } : {} } }));
      listed.then(({ items }) => setProviders(items), () => {});
      if (stored) return signInAgain(stored, signIn);
      const finished = await signInByProvider((await listed).items, answer, asked);
      if (!finished) return false;
      await enter(finished.tokens.token);
      rememberSignIn(finished.provider);
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
