import type { ReactNode } from 'react';
import { api, read } from '../../api/client';
import { Empty, Failure, Loading } from '../../parts/parts';
import { useLoad } from '../../parts/useLoad';
import { go } from '../../router';
import { useTexts } from '../../texts/texts';

/** Chooses the agent that a page is about; the address names it. */
export function AgentChoice({ part, agent, children }: {
  part: string;
  agent: string;
  children: (agent: string) => ReactNode;
}) {
  const { say } = useTexts();
  const agents = useLoad('agents', () => read(api.GET('/v1/agents')));
  if (agents.error) return <Failure error={agents.error} retry={agents.reload} />;
  if (!agents.data) return <Loading />;
  const chosen = agent || agents.data.items[0]?.id;
  if (!chosen) return <Empty>{say('chat.agents.none')}</Empty>;
  return (
    <>
      <div className="filters">
        <label>{say('approval.agent')}
          <select value={chosen} onChange={(event) => go('admin', part, event.target.value)}>
            {agents.data.items.map((item) => <option key={item.id} value={item.id}>{item.display_name}</option>)}
          </select>
        </label>
      </div>
      {children(chosen)}
    </>
  );
}
