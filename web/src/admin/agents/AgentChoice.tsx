import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { get } from '../../api/queries';
import { ChoiceEntry } from '../../parts/Field';
import { Empty, Pending } from '../../parts/parts';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';

/** Chooses the agent that a page is about; the address names it. */
export function AgentChoice({ part, agent, children }: {
  part: string;
  agent: string;
  children: (agent: string) => ReactNode;
}) {
  const { say } = useTexts();
  const navigate = useNavigate();
  const agents = useQuery(get('/v1/agents'));
  if (!agents.data) return <Pending query={agents} />;
  const chosen = agent || agents.data.items[0]?.id;
  if (!chosen) return <Empty>{say('chat.agents.none')}</Empty>;
  return (
    <>
      <div className="filters">
        <ChoiceEntry
          label={say('approval.agent')} value={chosen} onChange={(id) => void navigate(toAdmin(part, id))}
          options={agents.data.items.map((item) => [item.id, item.display_name] as const)}
        />
      </div>
      {children(chosen)}
    </>
  );
}
