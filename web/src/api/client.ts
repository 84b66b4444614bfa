/** Requests to the API. A refused one throws `Refused`, with the code that programs read and the words for people. */
import createClient, { type Middleware } from 'openapi-fetch';
import { takeEarly } from '../early';
import { keepDigits, writeJson } from './digits';
import type { components, paths } from './schema';

export type Schemas = components['schemas'];

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    /** The field that it is about, as the API calls it; empty where there is none. */
    readonly field = '',
  ) {
    super(detail);
  }
}

/**
 * Who asks, and what happens when the API does not know them any more. `renew` gets another token in the place of one that
 * was refused, and says whether there is one: a computer that slept finds its token at an end.
 */
export const credential = { token: '', language: '', onSignedOut: () => {}, renew: () => Promise.resolve(false) };

export function authorization(): Record<string, string> {
  return { Authorization: `Bearer ${credential.token}`, ...(credential.language && { 'Accept-Language': credential.language }) };
}

async function ask(request: Request): Promise<Response> {
  let response = await (takeEarly(request) ?? fetch(request.clone()));
  if (response.status === 401 && (await credential.renew())) {
    request.headers.set('Authorization', `Bearer ${credential.token}`);
    response = await fetch(request);
  }
  if (!response.headers.get('Content-Type')?.includes('json')) return response;
  return new Response(keepDigits(await response.text()), response);
}

const signed: Middleware = {
  onRequest({ request }) {
    for (const [name, value] of Object.entries(authorization())) request.headers.set(name, value);
    return request;
  },
};

export const api = createClient<paths>({ baseUrl: '', fetch: ask, bodySerializer: (body) => writeJson(body) ?? '' });
api.use(signed);

/** Reads the answer, or throws what the API says of it. */
export async function read<T>(request: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await request;
  if (response.ok) return data as T;
  throw refusal(response.status, error);
}

/** Makes an error of a problem document. */
export function refusal(status: number, body: unknown): Refused {
  const problem = (typeof body === 'object' && body !== null ? body : {}) as { code?: string; detail?: string; field?: string };
  if (status === 401) credential.onSignedOut();
  return new Refused(status, problem.code ?? 'unknown', problem.detail ?? `HTTP ${status}`, problem.field ?? '');
}

/** A name for a request: sent again with the same name, it is not done twice. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export const asError = (error: unknown): Error => (error instanceof Error ? error : new Error(String(error)));
