import { useEffect, useState } from 'react';
import { api, read } from '../api/client';
import { Empty, Failure, Loading, Moment } from '../parts/parts';
import { useAction, useLoad } from '../parts/useLoad';
import { useTexts } from '../texts/texts';
import { ApprovalCard, State } from './ApprovalCard';
import { type Approval, useNews } from './news';

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

/** The list as it was loaded, and above it what came since. */
export function ApprovalList({ tab, filter }: { tab: Tab; filter: Filter }) {
  const { say } = useTexts();
  const { approvals, remember } = useNews();
  const isFiltered = Object.keys(filter).length > 0;
  const load = (cursor?: string) => {
    const query = { ...QUERIES[tab], ...filter, limit: 30, ...(cursor && { cursor }) };
    return read(api.GET('/v1/approvals', { params: { query } }));
  };
  const loaded = useLoad(JSON.stringify(filter), () => load());
  const more = useAction();
  useEffect(() => loaded.data?.items.forEach(remember), [loaded.data]);
  if (loaded.error) return <Failure error={loaded.error} retry={loaded.reload} />;
  if (!loaded.data) return <Loading />;
  const known = new Set(loaded.data.items.map((view) => view.id));
  // What is news cannot be told from what a filter leaves out.
  const added = isFiltered ? [] : Object.values(approvals).filter((view) => !known.has(view.id) && belongs(tab, view));
  const ids = [...added.sort((a, b) => b.id.localeCompare(a.id)).map((view) => view.id), ...known];
  const { next } = loaded.data;
  const loadMore = () => more.run(async () => {
    const page = await load(next ?? undefined);
    loaded.setData((old) => ({ ...page, items: [...(old?.items ?? []), ...page.items] }));
  });
  if (ids.length === 0) return <Empty>{say(isFiltered ? 'approvals.filtered.none' : `approvals.${tab}.none`)}</Empty>;
  return (
    <>
      <ul className="cards" aria-live="polite">
        {ids.map((id) => <li key={id}>{tab === 'waiting' ? <ApprovalCard id={id} /> : <Row id={id} />}</li>)}
      </ul>
      {next && <button type="button" disabled={more.isBusy} onClick={() => void loadMore()}>{say('more')}</button>}
      <Failure error={more.error} />
    </>
  );
}

function belongs(tab: Tab, view: Approval): boolean {
  if (tab === 'waiting') return view.decidable && view.state === 'pending';
  return tab === 'mine' ? view.own : !view.own;
}

/** A line that opens to the whole request. */
function Row({ id }: { id: string }) {
  const [isOpen, setIsOpen] = useState(false);
  const { approvals } = useNews();
  const view = approvals[id];
  if (!view) return null;
  return (
    <details className="row" onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>
        <code>{view.code}</code> <span className="grow">{view.requester.name}: {view.tool}</span>
        <State state={view.state} /> <Moment at={view.created_at} />
      </summary>
      {isOpen && <ApprovalCard id={id} />}
    </details>
  );
}
