/** Tells a person who is elsewhere, by the browser's own notifications. */
import { get, queries } from '../api/queries';
import { type Called, sentenceOf } from '../parts/CallSentence';
import type { Say } from '../texts/texts';
import type { Approval } from './news';
import { needsOf } from './Outcome';

const DECLINED = 'chatelaine.notify.declined';

/** Whether the browser has not asked yet. A browser without notifications, or of a phone, never asks. */
export const canAsk = () => 'Notification' in window && Notification.permission === 'default';
export const hasDeclined = () => localStorage.getItem(DECLINED) !== null;
export const decline = () => localStorage.setItem(DECLINED, 'yes');

/** Asks for the permission. Browsers want this to be a click. */
export async function askPermission() {
  localStorage.removeItem(DECLINED);
  await Notification.requestPermission();
}

const isElsewhere = () => document.hidden || !document.hasFocus();

function show(id: string, title: string, body: string) {
  if (!('Notification' in window) || Notification.permission !== 'granted' || !isElsewhere()) return;
  try {
    // Several tabs tell the same once, by its tag.
    const shown = new Notification(title, { body, tag: id });
    shown.onclick = () => {
      window.focus();
      window.location.hash = `#/approvals/${id}`;
      shown.close();
    };
  } catch {
    // Some browsers show none without a service worker.
  }
}

/** A request waits for this person. What it is about is a sentence of ours, with its figures. */
export async function notifyOfRequest({ id, code, requester }: Approval, say: Say) {
  if (!isElsewhere()) return;
  const view = await queries.fetchQuery(get('/v1/approvals/{id}', { path: { id } }));
  if (view.state !== 'pending') return;
  const { pieces } = sentenceOf(view as Called);
  const body = [pieces.map(({ text }) => text).join(''), needsOf(view, say)];
  show(id, say('notify.waits', { name: requester.name, code }), body.filter(Boolean).join(' – '));
}

/** The own request has its outcome. */
export function notifyOfOutcome({ id, code, state, text }: Approval, say: Say) {
  show(id, say('notify.outcome', { code, state: say(`approval.${state}`) }), text.replace(/^\p{Extended_Pictographic}\uFE0F?\s*/u, ''));
}
