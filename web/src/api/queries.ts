/**
 * What the page has loaded of the API. The key of a query is its path and its parameters: a path alone names all
 * that a change has made stale.
 */
import { focusManager, infiniteQueryOptions, QueryClient, queryOptions } from '@tanstack/react-query';
import { api, read, Refused } from './client';
import type { paths } from './schema';

type Path = { [P in keyof paths]: paths[P] extends { get: object } ? P : never }[keyof paths];
type Params<P extends Path> = paths[P] extends { get: { parameters: infer T extends object } } ? T : never;
type Answer<P extends Path> = paths[P] extends { get: { responses: { 200: { content: { 'application/json': infer T } } } } } ? T : never;
/** The parameters of a path, and milliseconds to wait for the next letter where they are typed. */
type Rest<P extends Path> = object extends Params<P> ? [Params<P>?, number?] : [Params<P>, number?];

/** A refusal stays one; what the network or a replica lost is asked for again. */
const isLost = (error: Error) => !(error instanceof Refused) || error.status >= 500;

export const queries = new QueryClient({
  defaultOptions: {
    queries: { networkMode: 'always', refetchOnReconnect: true, retry: (count, error) => count < 2 && isLost(error) },
    mutations: { networkMode: 'always' },
  },
});

// Two windows side by side are both visible: the one that a person turns to is loaded again.
focusManager.setEventListener((onFocus) => {
  const listener = () => onFocus();
  window.addEventListener('focus', listener);
  document.addEventListener('visibilitychange', listener);
  return () => {
    window.removeEventListener('focus', listener);
    document.removeEventListener('visibilitychange', listener);
  };
});

/** The wait before a request for what is typed, in milliseconds. */
export const TYPING = 250;

/** Ends early, with an error, when nobody wants the answer any more. */
export function pause(time: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, time);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(new Error('not wanted any more'));
    });
  });
}

async function load<P extends Path>(path: P, params: object, wait: number, signal: AbortSignal): Promise<Answer<P>> {
  if (wait > 0) await pause(wait, signal);
  const request = api.GET as (path: Path, init: object) => Promise<{ data?: Answer<P>; error?: unknown; response: Response }>;
  return read(request(path, { params, signal }));
}

/** One thing of the API. */
export function get<P extends Path>(path: P, ...[params = {} as Params<P>, wait = 0]: Rest<P>) {
  return queryOptions({ queryKey: [path, params] as const, queryFn: ({ signal }) => load(path, params, wait, signal) });
}

interface Page {
  items: unknown[];
  next?: string | null;
}

/** A list of the API, page after page. */
export function getPages<P extends Path>(path: P, ...[params = {} as Params<P>, wait = 0]: Answer<P> extends Page ? Rest<P> : never) {
  type Item = (Answer<P> & Page)['items'][number];
  return infiniteQueryOptions({
    queryKey: [path, params, 'pages'] as const,
    queryFn: async ({ pageParam, signal }) => {
      const { query = {} } = params as { query?: object };
      return (await load(path, { ...params, query: { ...query, ...(pageParam && { cursor: pageParam }) } }, wait, signal)) as Page;
    },
    initialPageParam: '',
    getNextPageParam: ({ next }) => next || undefined,
    select: ({ pages }) => pages.flatMap(({ items }) => items as Item[]),
  });
}

/** Loads again what is shown of a path, and the rest when it is shown; parameters name a part of it. */
export const invalidate = (path: Path, params?: object) => queries.invalidateQueries({ queryKey: params ? [path, params] : [path] });
