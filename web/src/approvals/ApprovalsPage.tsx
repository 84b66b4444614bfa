import { Badge, Heading, Tabs } from '@radix-ui/themes';
import { createLazyRoute } from '@tanstack/react-router';
import { useState } from 'react';
import { Boundary } from '../parts/Boundary';
import { NotifyQuestion } from '../parts/NotifyQuestion';
import { Notice } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { ApprovalCard } from './ApprovalCard';
import { ApprovalList, type Filter, type Tab } from './ApprovalList';
import { Filters } from './Filters';
import { useApproval, useBadge } from './news';

const TABS: Tab[] = ['waiting', 'mine', 'history'];

export const route = createLazyRoute('/approvals/{-$approval}')({ component: ApprovalsPage });

/** What waits for the user's decision, the user's own requests, and those of before. */
function ApprovalsPage() {
  const { approval: id } = route.useParams();
  const { say } = useTexts();
  const badge = useBadge();
  // The address may name a code, and news of a request name its id.
  const { data: named } = useApproval(id ?? '', undefined, id !== undefined);
  const [tab, setTab] = useState<Tab>('waiting');
  const [filter, setFilter] = useState<Filter>({});
  const counts = { waiting: badge.pending_approvals, mine: badge.my_approval_requests, history: 0 };
  const show = (name: Tab) => {
    setTab(name);
    setFilter({});
  };
  return (
    <main className="page">
      <Heading as="h1" size="6">{say('nav.approvals')}</Heading>
      {id && <Boundary fallback={<Notice tone="bad">{say('approval.broken', { code: id })}</Notice>}><ApprovalCard key={id} id={named?.id ?? id} listed={named} /></Boundary>}
      <Tabs.Root value={tab} onValueChange={(name) => show(name as Tab)}>
        <Tabs.List>
          {TABS.map((name) => (
            <Tabs.Trigger key={name} value={name}>
              {say(`approvals.${name}`)}{counts[name] > 0 && <Badge ml="2" radius="full" color={name === 'waiting' ? 'red' : 'gray'}>{counts[name]}</Badge>}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
        <Tabs.Content key={tab} value={tab} className="cards">
          {tab !== 'waiting' && <Filters filter={filter} hasRequester={tab === 'history'} onChange={setFilter} />}
          <ApprovalList tab={tab} filter={filter} except={id} />
        </Tabs.Content>
      </Tabs.Root>
      {/* Behind the cards, which it must not move or cover. */}
      <NotifyQuestion />
    </main>
  );
}
