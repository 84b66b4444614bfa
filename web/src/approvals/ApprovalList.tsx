import { Card, Code, Text } from '@radix-ui/themes';
import { keepPreviousData, useInfiniteQuery } from '@tanstack/react-query';
import { useRef, useState } from 'react';
import { getPages, TYPING } from '../api/queries';
import { Empty, Moment, More, Pending } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { ApprovalCard } from './ApprovalCard';
import type { Approval } from './news';
import { State } from './Outcome';

export type Tab = 'waiting' | 'mine' | 'history';

/** What a request must be to be listed. */
export interface Filter {
  state?: Approval['state'];
  tool?: string;
  /** The id of a user. */
  requester?: string;
}

const QUERIES = {
  waiting: { role: 'approver', decidable: true },
  mine: { role: 'requester' },
  history: { role: 'approver' },
} as const;

export function ApprovalList({ tab, filter }: { tab: Tab; filter: Filter }) {
  const { say } = useTexts();
  const isFiltered = Object.keys(filter).length > 0;
  const params = { query: { ...QUERIES[tab], ...filter, limit: 30 } };
  const query = useInfiniteQuery({ ...getPages('/v1/approvals', params, isFiltered ? TYPING : 0), placeholderData: keepPreviousData });
  const waiting = useSeen(tab === 'waiting' ? query.data : undefined);
  if (!query.data) return <Pending query={query} />;
  const views = tab === 'waiting' ? waiting : query.data;
  if (views.length === 0) return <Empty>{say(isFiltered ? 'approvals.filtered.none' : `approvals.${tab}.none`)}</Empty>;
  return (
    <>
      <ul className="cards" aria-live="polite">
        {views.map((view) => <li key={view.id}>{tab === 'waiting' ? <ApprovalCard id={view.id} listed={view} /> : <Row view={view} />}</li>)}
      </ul>
      <More query={query} />
    </>
  );
}

/** What has waited stays while it is looked at, with what became of it. */
function useSeen(listed: Approval[] = []): Approval[] {
  const seen = useRef(new Map<string, Approval>());
  for (const view of listed) seen.current.set(view.id, view);
  return [...seen.current.values()].sort((a, b) => b.id.localeCompare(a.id));
}

/** A line that opens to the whole request. */
function Row({ view }: { view: Approval }) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <Card asChild size="1">
      <details className="row" onToggle={(event) => setIsOpen(event.currentTarget.open)}>
        <summary>
          <Code>{view.code}</Code> <span className="grow">{view.requester.name}: {view.tool}</span>
          <State state={view.state} /> <Text size="2" color="gray"><Moment at={view.created_at} /></Text>
        </summary>
        {isOpen && <ApprovalCard id={view.id} listed={view} />}
      </details>
    </Card>
  );
}
