/** How far somebody has come with the minute that the demo shows. It stays in the tab; that it was closed, in the browser. */
import { useSyncExternalStore } from 'react';

export const STEPS = ['ask', 'pay', 'approve', 'connect'] as const;
export type Step = (typeof STEPS)[number];

interface Guide {
  isClosed: boolean;
  done: Step[];
  /** The one whose words are shown. */
  current: Step | undefined;
  /** The conversation in which the steps happen. */
  conversation: string;
  hasPane: boolean;
}

const CLOSED = 'chatelaine.guide.closed';
const PROGRESS = 'chatelaine.guide';

const NEW: Guide = { isClosed: false, done: [], current: undefined, conversation: '', hasPane: false };

const readKept = (): Guide => ({ ...NEW, ...(JSON.parse(sessionStorage.getItem(PROGRESS) ?? '{}') as Partial<Guide>), isClosed: localStorage.getItem(CLOSED) !== null });

let guide = readKept();
const listeners = new Set<() => void>();

export function changeGuide(changed: Partial<Guide>) {
  guide = { ...guide, ...changed };
  const { isClosed, ...progress } = guide;
  sessionStorage.setItem(PROGRESS, JSON.stringify(progress));
  if (isClosed) localStorage.setItem(CLOSED, 'yes');
  else localStorage.removeItem(CLOSED);
  for (const listener of listeners) listener();
}

/** From its first step. */
export const beginGuide = () => changeGuide(NEW);

export const closeGuide = () => changeGuide({ isClosed: true, hasPane: false });

function subscribe(listener: () => void) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export const useGuide = () => useSyncExternalStore(subscribe, () => guide);
