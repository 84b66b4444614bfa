/**
 * Asks for what the page shows first while the page itself is on its way. A tab with a token that comes back to a
 * conversation shows it some round trips sooner. This is a script of its own, and imports nothing.
 */

/** Where a tab keeps the token that was pasted. */
export const TOKEN = 'chatelaine.token';
/** Where a browser keeps the language that was chosen. */
export const LANGUAGE = 'chatelaine.language';
/** The tenant whose page this browser has opened last: an installed page begins without its name. */
const TENANT = 'chatelaine.tenant';
/** After this time of the page, in milliseconds, an answer is old. */
const FRESH = 10_000;

/** The demo shows a second person in a pane: this page, framed by itself. The frame shares the storage of its tab, and is somebody else. */
export const IS_PANE = window.parent !== window;

const token = IS_PANE ? null : sessionStorage.getItem(TOKEN);
const language = localStorage.getItem(LANGUAGE);
const answers = new Map<string, Promise<Response>[]>();

function ask(path: string): Promise<Response> {
  const answer = fetch(path, { headers: { Authorization: `Bearer ${token}`, ...(language && { 'Accept-Language': language }) } });
  answers.set(path, [...(answers.get(path) ?? []), answer]);
  return answer;
}

/** In the order in which the page asks: messages are not older than what is known of their conversation. */
async function askForConversation(path: string) {
  if (!(await ask(path)).ok) return;
  await Promise.all([ask(path), ask(`${path}/messages?after=0&limit=100`), ask(`${path}/branches`)]);
}

/** The answer to a request of the same person, once. */
export function takeEarly(request: Request): Promise<Response> | undefined {
  if (performance.now() > FRESH || request.method !== 'GET' || request.headers.get('Authorization') !== `Bearer ${token}`) return undefined;
  return answers.get(request.url.slice(window.location.origin.length))?.shift();
}

const tenant = new URLSearchParams(window.location.search).get('tenant');
/** An installed page goes on to the page of its tenant. */
export const IS_LEAVING = !window.location.search && window.matchMedia('(display-mode: standalone)').matches && Boolean(localStorage.getItem(TENANT));
if (tenant !== null) localStorage.setItem(TENANT, tenant);
else if (IS_LEAVING)
  window.location.replace(`/?tenant=${encodeURIComponent(localStorage.getItem(TENANT) ?? '')}${window.location.hash}`);

const conversation = /^#\/chat\/([\w-]+)$/.exec(window.location.hash)?.[1];
if (token) {
  // What fails is asked for again by the page.
  ask('/v1/me').catch(() => {});
  if (conversation) {
    ask('/v1/conversations?limit=50&archived=false').catch(() => {});
    askForConversation(`/v1/conversations/${conversation}`).catch(() => {});
  }
}
