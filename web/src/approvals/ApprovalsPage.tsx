import { useState } from 'react';
import { useTexts } from '../texts/texts';
import { ApprovalCard } from './ApprovalCard';
import { ApprovalList, type Filter, type Tab } from './ApprovalList';
import { Filters } from './Filters';
import { useBadge } from './news';

const TABS: Tab[] = ['waiting', 'mine', 'history'];

/** What waits for the user's decision, the user's own requests, and those of before. */
export function ApprovalsPage({ id }: { id: string }) {
  const { say } = useTexts();
  const badge = useBadge();
  const [tab, setTab] = useState<Tab>('waiting');
  const [filter, setFilter] = useState<Filter>({});
  const counts = { waiting: badge.pending_approvals, mine: badge.my_approval_requests, history: 0 };
  const show = (name: Tab) => {
    setTab(name);
    setFilter({});
  };
  return (
    <main className="page">
      <h1>{say('nav.approvals')}</h1>
      {id && <ApprovalCard id={id} />}
      <div className="tabs" role="group" aria-label={say('nav.approvals')}>
        {TABS.map((name) => (
          <button key={name} type="button" aria-pressed={tab === name} onClick={() => show(name)}>
            {say(`approvals.${name}`)}{counts[name] > 0 && <span className="badge">{counts[name]}</span>}
          </button>
        ))}
      </div>
      {tab !== 'waiting' && <Filters filter={filter} hasRequester={tab === 'history'} onChange={setFilter} />}
      <ApprovalList key={tab} tab={tab} filter={filter} />
    </main>
  );
}
