/** What the program tells this user as it happens: how many requests wait, and each request that has changed. */
import { skipToken, useQuery } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import type { Schemas } from '../api/client';
import { get, invalidate, queries } from '../api/queries';
import { listen } from '../api/stream';

export type Approval = Schemas['ApprovalView'];

const BADGE = ['badge'];
const NONE: Schemas['Badge'] = { pending_approvals: 0, my_approval_requests: 0 };
/** The stream begins with every open request: they are one reason to load the lists again. */
const GATHER = 50;

const UNFINISHED: Approval['state'][] = ['pending', 'approved', 'executing'];
export const isFinished = (view: Approval) => !UNFINISHED.includes(view.state);

/** Milliseconds after the first event in which the stream may still be saying what was open before. */
const BEGINNING = 2000;

/**
 * Listens for as long as the page is open. Own requests that get their outcome meanwhile are `outcomes`, and what begins
 * to wait for this user is a `request`.
 */
export function useNews(tell: { onRequest: (view: Approval) => void; onOutcome: (view: Approval) => void }) {
  const [outcomes, setOutcomes] = useState<Approval[]>([]);
  const latest = useRef(tell);
  latest.current = tell;
  useEffect(() => {
    const waiting = new Set<string>();
    let [timer, began] = [0, 0];
    const close = listen('/v1/events', {
      onState: () => {},
      onEvent: ({ name, data }) => {
        began ||= performance.now();
        if (name === 'badge') queries.setQueryData(BADGE, data);
        if (name !== 'approval') return;
        const view = data as Approval;
        void invalidate('/v1/approvals/{id}', { path: { id: view.id } });
        clearTimeout(timer);
        timer = window.setTimeout(() => void invalidate('/v1/approvals'), GATHER);
        if (!isFinished(view)) {
          const isNew = !waiting.has(view.id) && performance.now() - began > BEGINNING;
          // What the user is asked about their own call stands where they made it.
          if (isNew && view.decidable && view.kind !== 'confirmation') latest.current.onRequest(view);
          waiting.add(view.id);
        } else if (waiting.delete(view.id) && view.own) {
          latest.current.onOutcome(view);
          setOutcomes((old) => [...old.filter(({ id }) => id !== view.id), view]);
        }
      },
    });
    return () => {
      clearTimeout(timer);
      close();
    };
  }, []);
  const dismiss = (id: string) => setOutcomes((old) => old.filter((view) => view.id !== id));
  return { outcomes, dismiss };
}

/** How many requests wait, as the stream has said it last. */
export const useBadge = () => useQuery<Schemas['Badge']>({ queryKey: BADGE, queryFn: skipToken, staleTime: Infinity }).data ?? NONE;

/** One request with its arguments. A list has it without them. */
export const useApproval = (id: string, listed?: Approval, enabled = true) => useQuery({ ...get('/v1/approvals/{id}', { path: { id } }), enabled, ...(listed && { placeholderData: listed }) });

/** Keeps what a decision has made of a request, unless its user has signed out meanwhile. */
export function keepApproval(view: Approval) {
  queries.setQueryData(get('/v1/approvals/{id}', { path: { id: view.id } }).queryKey, (old) => old && view);
  return invalidate('/v1/approvals');
}
