import { MessageSquarePlus } from 'lucide-react';
import { api, read } from '../api/client';
import { Empty, Failure, Loading } from '../parts/parts';
import { useAction, useLoad } from '../parts/useLoad';
import { go, href } from '../router';
import { useMe } from '../signin/session';
import { useTexts } from '../texts/texts';

/** Whom one can talk to. */
export function Welcome({ onCreated }: { onCreated: () => void }) {
  const { say } = useTexts();
  const me = useMe();
  const agents = useLoad('agents', () => read(api.GET('/v1/agents')));
  const { isBusy, error, run } = useAction();
  if (agents.error) return <Failure error={agents.error} retry={agents.reload} />;
  if (!agents.data) return <Loading />;
  const start = (agent: string) => run(async () => {
    const { id } = await read(api.POST('/v1/conversations', { body: { agent } }));
    onCreated();
    go('chat', id);
  });
  return (
    <div className="thread">
      <div className="column welcome">
        <h2>{say('chat.welcome', { name: me.name })}</h2>
        {agents.data.items.length === 0 && <Empty>{say('chat.agents.none')}</Empty>}
        <ul className="agents">
          {agents.data.items.map((agent) => (
            <li key={agent.id} className="card">
              <h3>{agent.display_name}</h3>
              <p className="muted">{agent.description}</p>
              <div className="buttons">
                <button type="button" className="primary" disabled={isBusy} onClick={() => void start(agent.id)}>
                  <MessageSquarePlus size={18} /> {say('chat.talk', { agent: agent.display_name })}
                </button>
                <a href={href('connections', agent.id)}>{say('nav.connections')}</a>
              </div>
            </li>
          ))}
        </ul>
        <Failure error={error} />
      </div>
    </div>
  );
}
