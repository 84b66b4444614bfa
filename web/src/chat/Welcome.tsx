import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate } from '@tanstack/react-router';
import { MessageSquarePlus } from 'lucide-react';
import { api, read, type Schemas } from '../api/client';
import { get, invalidate } from '../api/queries';
import { Empty, Failure, Pending } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { toChat, toConnections } from '../links';
import { useMe } from '../signin/session';
import { useTexts } from '../texts/texts';
import { FirstMessage } from './FirstMessage';
import { keepFirstMessage } from './keptMessage';

/** Whom one can talk to, and a field to begin at once. */
export function Welcome() {
  const { say } = useTexts();
  const me = useMe();
  const navigate = useNavigate();
  const agents = useQuery(get('/v1/agents'));
  const { isBusy, error, run } = useAction();
  if (!agents.data) return <Pending query={agents} />;
  const { items } = agents.data;
  const start = (agent: string, text?: string) => run(async () => {
    const { id } = await read(api.POST('/v1/conversations', { body: { agent } }));
    if (text) keepFirstMessage(id, text);
    void invalidate('/v1/conversations');
    await navigate(toChat(id));
  });
  return (
    <div className="thread">
      <div className="column welcome">
        <h2>{say('chat.hello', { name: me.name })}</h2>
        {items.length === 0 ? <Empty>{say('chat.agents.none')}</Empty> : <FirstMessage agents={items} isBusy={isBusy} onStart={start} />}
        <Failure error={error} />
        <ul className="agents">
          {items.map((agent) => <li key={agent.id} className="card"><Agent agent={agent} isBusy={isBusy} onStart={() => void start(agent.id)} /></li>)}
        </ul>
      </div>
    </div>
  );
}

function Agent({ agent, isBusy, onStart }: { agent: Schemas['AgentView']; isBusy: boolean; onStart: () => void }) {
  const { say } = useTexts();
  return (
    <>
      <h3>{agent.display_name}</h3>
      <p className="muted">{agent.description}</p>
      <div className="buttons">
        <button type="button" disabled={isBusy} onClick={onStart}>
          <MessageSquarePlus size={18} /> {say('chat.talk', { agent: agent.display_name })}
        </button>
        <Link {...toConnections(agent.id)}>{say('nav.connections')}</Link>
      </div>
    </>
  );
}
