import { Card, Code, Text } from '@radix-ui/themes';
import { keepPreviousData, useInfiniteQuery } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { getPages, TYPING } from '../api/queries';
import { Boundary } from '../parts/Boundary';
import { type Called, CallSentence } from '../parts/CallSentence';
import { Empty, Moment, More, Notice, Pending } from '../parts/parts';
import { PlainButton } from '../parts/PlainButton';
import { useTexts } from '../texts/texts';
import { ApprovalCard } from './ApprovalCard';
import { type Approval, useApproval } from './news';
import { State } from './Outcome';
import { shake } from './settled';

export type Tab = 'waiting' | 'mine' | 'history';

/** What a request must be to be listed. */
export interface Filter {
  state?: Approval['state'];
  tool?: string;
  /** The id of a user. */
  requester?: string;
}

const QUERIES = {
  waiting: { role: 'approver', decidable: true, order: 'oldest' },
  mine: { role: 'requester' },
  history: { role: 'approver' },
} as const;

/** Requests, but for the one that the page shows already. */
export function ApprovalList({ tab, filter, except }: { tab: Tab; filter: Filter; except: string | undefined }) {
  const { say } = useTexts();
  const isFiltered = Object.keys(filter).length > 0;
  const params = { query: { ...QUERIES[tab], ...filter, limit: 30 } };
  const query = useInfiniteQuery({ ...getPages('/v1/approvals', params, isFiltered ? TYPING : 0), placeholderData: keepPreviousData });
  const isOther = (view: Approval) => view.id !== except && view.code !== except;
  const listed = query.data?.filter(isOther);
  const { views: kept, fresh, showAll } = useStable(JSON.stringify(params), query.isPlaceholderData ? undefined : listed, tab === 'waiting');
  const views = kept.filter(isOther);
  const isShownAbove = query.data?.some((view) => !isOther(view)) ?? false;
  const list = useRef<HTMLUListElement>(null);
  const [wanted, setWanted] = useState('');
  useEffect(() => {
    // Whoever pressed the button reads on at what it has brought.
    const node = list.current?.querySelector<HTMLElement>(`[data-request="${wanted}"]`);
    node?.focus({ preventScroll: true });
    node?.scrollIntoView({ block: 'nearest' });
  }, [wanted]);
  if (!listed) return <Pending query={query} />;
  const show = () => {
    shake();
    showAll(listed);
    setWanted(fresh[0]?.id ?? '');
  };
  const loadMore = async () => {
    const loaded = await query.fetchNextPage();
    if (loaded.data) showAll(loaded.data);
    return loaded;
  };
  return (
    <>
      {views.length === 0 && <Empty>{say(isFiltered ? 'approvals.filtered.none' : isShownAbove && tab === 'waiting' ? 'approvals.waiting.noneElse' : `approvals.${tab}.none`)}</Empty>}
      <ul className="cards" aria-live="polite" ref={list}>
        {views.map((view) => (
          <li key={view.id} data-request={view.id} tabIndex={-1}>
            <Boundary fallback={<Notice tone="bad">{say('approval.broken', { code: view.code })}</Notice>}>
              {tab === 'waiting' ? <ApprovalCard id={view.id} listed={view} /> : <Row view={view} />}
            </Boundary>
          </li>
        ))}
      </ul>
      <More query={{ ...query, fetchNextPage: loadMore }} />
      <div className="fresh" role="status">
        {fresh.length > 0 && <PlainButton radius="full" onClick={show}>{say('approvals.new', { count: fresh.length })}</PlainButton>}
      </div>
    </>
  );
}

/**
 * A list of requests stays as it is while it is looked at: what was decided keeps its place, and what is new (`fresh`)
 * waits until it is wanted. Where `appends`, new ones go to the end, and need not wait when none is left to decide.
 */
function useStable(key: string, listed: Approval[] | undefined, appends: boolean) {
  const known = useRef(new Map<string, Approval>());
  const [kept, setKept] = useState<{ key: string; ids: string[] }>();
  for (const view of listed ?? []) known.current.set(view.id, view);
  const ids = (views: Approval[]) => views.map(({ id }) => id);
  if (listed && kept?.key !== key) setKept({ key, ids: ids(listed) });
  const shown = kept?.ids ?? [];
  const fresh = kept?.key === key ? (listed ?? []).filter(({ id }) => !shown.includes(id)) : [];
  const showAll = (all: Approval[]) => {
    for (const view of all) known.current.set(view.id, view);
    const found = ids(all);
    const [first, second] = appends ? [shown, found] : [found, shown];
    setKept({ key, ids: [...new Set([...first, ...second])] });
  };
  if (appends && listed && fresh.length > 0 && !listed.some(({ id }) => shown.includes(id))) showAll(listed);
  return { views: shown.flatMap((id) => known.current.get(id) ?? []), fresh, showAll };
}

/** A line that opens to the whole request. Its arguments are loaded when it is seen. */
function Row({ view }: { view: Approval }) {
  const [isOpen, setIsOpen] = useState(false);
  const { ref, isSeen } = useSeen<HTMLElement>();
  const { data = view } = useApproval(view.id, view, isSeen);
  return (
    <Card asChild size="1">
      <details className="row" onToggle={(event) => setIsOpen(event.currentTarget.open)}>
        <summary ref={ref}>
          <Code>{view.code}</Code> <span className="grow">{view.requester.name}: <span className="call"><CallSentence {...(data as Called)} hasFirst /></span></span>
          <State {...view} /> <Text size="2" color="gray"><Moment at={view.created_at} /></Text>
        </summary>
        {isOpen && <ApprovalCard id={view.id} listed={view} />}
      </details>
    </Card>
  );
}

/** Whether an element has been in view. */
function useSeen<T extends Element>() {
  const ref = useRef<T>(null);
  const [isSeen, setIsSeen] = useState(false);
  useEffect(() => {
    if (!ref.current) return undefined;
    const observer = new IntersectionObserver((entries) => {
      if (entries.some(({ isIntersecting }) => isIntersecting)) setIsSeen(true);
    });
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return { ref, isSeen };
}
