/** Who is signed in. The token is kept for this tab (`sessionStorage`) and goes when the tab closes. */
import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from 'react';
import { api, credential, read, Refused, type Schemas } from './api/client';

const TOKEN = 'chatelaine.token';
const DEMO = 'chatelaine.demo';

export type Me = Schemas['Me'];

interface Session {
  me: Me | null;
  /** A stored token is being checked. */
  isChecking: boolean;
  /** The demo's people and their tokens. */
  people: Record<string, string>;
  /** The API ended the session. */
  hasEnded: boolean;
  signIn: (token: string) => Promise<void>;
  signOut: () => void;
}

const Context = createContext<Session | null>(null);

/** The link of a demo has a key in its fragment, which leaves the address at once. */
function demoKey(): string {
  const found = /^#demo=([0-9a-f]+)$/.exec(window.location.hash)?.[1];
  if (found) {
    sessionStorage.setItem(DEMO, found);
    history.replaceState(null, '', window.location.pathname);
  }
  return found ?? sessionStorage.getItem(DEMO) ?? '';
}

async function demoPeople(): Promise<Record<string, string>> {
  const key = demoKey();
  if (!key) return {};
  const response = await fetch('/v1/demo/people', { headers: { Authorization: `Bearer ${key}` } });
  return response.ok ? ((await response.json()) as Record<string, string>) : {};
}

/** A token that the API refuses is dropped; without a network it is tried again. */
async function signInAgain(token: string, signIn: (token: string) => Promise<void>): Promise<void> {
  for (;;) {
    try {
      return await signIn(token);
    } catch (error) {
      if (error instanceof Refused && error.status < 500) return;
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

export function SessionProvider({ children }: { children: ReactNode }) {
  const [me, setMe] = useState<Me | null>(null);
  const [isChecking, setIsChecking] = useState(true);
  const [hasEnded, setHasEnded] = useState(false);
  const [people, setPeople] = useState<Record<string, string>>({});

  const forget = useCallback(() => {
    credential.token = '';
    sessionStorage.removeItem(TOKEN);
    setMe(null);
  }, []);
  const signOut = useCallback(() => {
    forget();
    // Also what was typed and not sent: the next person of this tab may be another one.
    for (const key of Object.keys(sessionStorage)) if (key !== DEMO) sessionStorage.removeItem(key);
    setHasEnded(false);
    window.location.hash = '';
  }, [forget]);
  const signIn = useCallback(async (token: string) => {
    credential.token = token;
    const known = await read(api.GET('/v1/me'));
    sessionStorage.setItem(TOKEN, token);
    setHasEnded(false);
    setMe(known);
  }, []);

  useEffect(() => {
    credential.onSignedOut = () => {
      if (sessionStorage.getItem(TOKEN)) setHasEnded(true);
      forget();
    };
    const stored = sessionStorage.getItem(TOKEN);
    void demoPeople().then(setPeople, () => {});
    if (!stored) setIsChecking(false);
    else void signInAgain(stored, signIn).finally(() => setIsChecking(false));
  }, [forget, signIn]);

  const session = useMemo(
    () => ({ me, isChecking, people, hasEnded, signIn, signOut }),
    [me, isChecking, people, hasEnded, signIn, signOut],
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
