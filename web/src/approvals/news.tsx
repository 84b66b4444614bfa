/** What the program tells this user as it happens: how many requests wait, and each request as it stands now. */
import { createContext, type ReactNode, useContext, useEffect, useMemo, useRef, useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { listen } from '../api/stream';

export type Approval = Schemas['ApprovalView'];

interface News {
  badge: Schemas['Badge'];
  approvals: Record<string, Approval>;
  /** Keeps a request that was asked for by its id. */
  remember: (view: Approval) => void;
  /** Own requests that got their outcome since the page was opened. */
  outcomes: Approval[];
  dismiss: (id: string) => void;
}

const NONE = { pending_approvals: 0, my_approval_requests: 0 };
const Context = createContext<News | null>(null);

/** The newer of two states of a request; the arguments come only when one request is asked for. */
function newer(old: Approval | undefined, next: Approval): Approval {
  if (!old) return next;
  const latest = Date.parse(next.changed_at) >= Date.parse(old.changed_at) ? next : old;
  return { ...latest, arguments: next.arguments ?? old.arguments ?? null };
}

const UNFINISHED: Approval['state'][] = ['pending', 'approved', 'executing'];
export const isFinished = (view: Approval) => !UNFINISHED.includes(view.state);

export function NewsProvider({ children }: { children: ReactNode }) {
  const [badge, setBadge] = useState<Schemas['Badge']>(NONE);
  const [approvals, setApprovals] = useState<Record<string, Approval>>({});
  const [outcomes, setOutcomes] = useState<Approval[]>([]);
  const waiting = useRef(new Set<string>());

  useEffect(() => {
    const keep = (view: Approval) => setApprovals((old) => ({ ...old, [view.id]: newer(old[view.id], view) }));
    return listen('/v1/events', {
      onState: () => {},
      onEvent: ({ name, data }) => {
        if (name === 'badge') setBadge(data as Schemas['Badge']);
        if (name !== 'approval') return;
        const view = data as Approval;
        keep(view);
        if (!isFinished(view)) waiting.current.add(view.id);
        else if (waiting.current.delete(view.id) && view.own) setOutcomes((old) => [...old.filter(({ id }) => id !== view.id), view]);
      },
    });
  }, []);

  const news = useMemo<News>(() => ({
    badge,
    approvals,
    outcomes,
    remember: (view) => setApprovals((old) => ({ ...old, [view.id]: newer(old[view.id], view) })),
    dismiss: (id) => setOutcomes((old) => old.filter((view) => view.id !== id)),
  }), [badge, approvals, outcomes]);
  return <Context value={news}>{children}</Context>;
}

export function useNews(): News {
  const news = useContext(Context);
  if (!news) throw new Error('a component outside of NewsProvider asks for news');
  return news;
}

/** One request with its arguments, as it stands now. */
export function useApproval(id: string): Approval | undefined {
  const { approvals, remember } = useNews();
  const isWhole = approvals[id]?.arguments != null;
  const latest = useRef(remember);
  latest.current = remember;
  useEffect(() => {
    if (!isWhole)
      read(api.GET('/v1/approvals/{id}', { params: { path: { id } } })).then((view) => latest.current(view), () => {});
  }, [id, isWhole]);
  return approvals[id];
}
