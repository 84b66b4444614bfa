import { useEffect, useState } from 'react';
import { api, read } from '../api/client';
import { Empty, Failure, Loading, Moment } from '../parts/parts';
import { useAction, useLoad } from '../parts/useLoad';
import { useTexts } from '../texts/texts';
import { ApprovalCard, State } from './ApprovalCard';
import { type Approval, useNews } from './news';

const TABS = ['waiting', 'mine', 'history'] as const;
type Tab = (typeof TABS)[number];

const QUERIES = {
  waiting: { role: 'approver', decidable: true },
  mine: { role: 'requester' },
  history: { role: 'approver' },
} as const;

export function ApprovalsPage({ id }: { id: string }) {
  const { say } = useTexts();
  const { badge } = useNews();
  const [tab, setTab] = useState<Tab>('waiting');
  const counts = { waiting: badge.pending_approvals, mine: badge.my_approval_requests, history: 0 };
  return (
    <main className="page">
      <h1>{say('nav.approvals')}</h1>
      {id && <ApprovalCard id={id} />}
      <div className="tabs" role="group" aria-label={say('nav.approvals')}>
        {TABS.map((name) => (
          <button key={name} type="button" aria-pressed={tab === name} onClick={() => setTab(name)}>
            {say(`approvals.${name}`)}{counts[name] > 0 && <span className="badge">{counts[name]}</span>}
          </button>
        ))}
      </div>
      <ApprovalList key={tab} tab={tab} />
    </main>
  );
}

/** The list as it was loaded, and above it what came since. */
function ApprovalList({ tab }: { tab: Tab }) {
  const { say } = useTexts();
  const { approvals, remember } = useNews();
  const loaded = useLoad(tab, () => load(tab));
  const more = useAction();
  useEffect(() => loaded.data?.items.forEach(remember), [loaded.data]);
  if (loaded.error) return <Failure error={loaded.error} retry={loaded.reload} />;
  if (!loaded.data) return <Loading />;
  const known = new Set(loaded.data.items.map((view) => view.id));
  const added = Object.values(approvals).filter((view) => !known.has(view.id) && belongs(tab, view));
  const ids = [...added.sort((a, b) => b.id.localeCompare(a.id)).map((view) => view.id), ...known];
  const { next } = loaded.data;
  const loadMore = () => more.run(async () => {
    const page = await load(tab, next ?? undefined);
    loaded.setData((old) => ({ ...page, items: [...(old?.items ?? []), ...page.items] }));
  });
  if (ids.length === 0) return <Empty>{say(`approvals.${tab}.none`)}</Empty>;
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

const load = (tab: Tab, cursor?: string) =>
  read(api.GET('/v1/approvals', { params: { query: { ...QUERIES[tab], limit: 30, ...(cursor ? { cursor } : {}) } } }));

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

