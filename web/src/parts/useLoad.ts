import { useCallback, useEffect, useRef, useState } from 'react';

export interface Loaded<T> {
  data: T | undefined;
  error: Error | undefined;
  reload: () => void;
  setData: (change: (data: T | undefined) => T | undefined) => void;
}

/** Loads something for as long as `key` stays the same, and once more after `reload`. */
export function useLoad<T>(key: string, load: () => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ key: string; data?: T; error?: Error }>({ key });
  const [round, setRound] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    let isCurrent = true;
    latest.current().then(
      (data) => isCurrent && setState({ key, data }),
      (error: unknown) => isCurrent && setState((old) => ({ ...(old.key === key ? old : { key }), error: asError(error) })),
    );
    return () => {
      isCurrent = false;
    };
  }, [key, round]);
  const reload = useCallback(() => setRound((count) => count + 1), []);
  const setData = useCallback((change: (data: T | undefined) => T | undefined) => {
    setState((old) => {
      const data = change(old.data);
      return data === undefined ? { key: old.key } : { ...old, data };
    });
  }, []);
  const isFresh = state.key === key;
  return { data: isFresh ? state.data : undefined, error: isFresh ? state.error : undefined, reload, setData };
}

export const asError = (error: unknown): Error => (error instanceof Error ? error : new Error(String(error)));

/** Runs something that a person asked for: one at a time, with its error for showing. */
export function useAction(): { isBusy: boolean; error: Error | undefined; run: (work: () => Promise<unknown>) => Promise<boolean> } {
  const [isBusy, setIsBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const run = useCallback(async (work: () => Promise<unknown>) => {
    setIsBusy(true);
    setError(undefined);
    try {
      await work();
      return true;
    } catch (failure) {
      setError(asError(failure));
      return false;
    } finally {
      setIsBusy(false);
    }
  }, []);
  return { isBusy, error, run };
}
