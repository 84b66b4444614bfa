import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import type { Schemas } from '../../api/client';
import { get } from '../../api/queries';
import { Empty, Pending } from '../../parts/parts';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { Table } from '../Table';
import { AgentChoice } from './AgentChoice';
import { DryRun } from './DryRun';

type ServerView = Schemas['List_ServerView']['items'][number];

/** What an agent's servers are configured with, and which level said so. */
export function AgentsPage({ item }: { item: string }) {
  return <AgentChoice part="agents" agent={item}>{(agent) => <Inherited key={agent} agent={agent} />}</AgentChoice>;
}

function Inherited({ agent }: { agent: string }) {
  const { say } = useTexts();
  const servers = useQuery(get('/v1/agents/{agent}/servers', { path: { agent }, query: { explain: true } }));
  if (!servers.data) return <Pending query={servers} />;
  if (servers.data.items.length === 0) return <Empty>{say('agents.none')}</Empty>;
  return (
    <>
      {servers.data.items.map((view) => <ServerCard key={view.server} view={view} />)}
      <DryRun agent={agent} servers={servers.data.items} />
    </>
  );
}

function ServerCard({ view }: { view: ServerView }) {
  const { say } = useTexts();
  const { explained, connection } = view;
  return (
    <article className="card" aria-label={view.server}>
      <header>
        <h2>{view.server}</h2>
        {view.per_run && <span className="state">{say('agents.per_run')}</span>}
        {connection && <span className={`state ${connection.state}`}>{say(`connection.${connection.state}`)}</span>}
      </header>
      <p className="muted">{view.description} <Link {...toAdmin('servers', view.ref)}><code>{view.ref}</code></Link></p>
      {explained?.url && <p><code>{explained.url}</code></p>}
      {explained?.problem && <p className="failure">{explained.problem}</p>}
      {explained && explained.config.length > 0 && (
        <Table label={view.server} heads={[say('server.key'), say('agents.value'), say('agents.level'), say('agents.note'), say('agents.header')]}>
          {explained.config.map((key) => (
            <tr key={key.key}>
              <th scope="row"><code>{key.key}</code>{key.required && <span className="muted"> {say('agents.required')}</span>}</th>
              <td>{key.value === undefined ? <span className="muted">{say('agents.unset')}</span> : <code>{typeof key.value === 'string' ? key.value : JSON.stringify(key.value)}</code>}</td>
              <td>{key.origin && <span className="state">{key.origin}</span>}</td>
              <td>{key.note}</td>
              <td><code>{key.header}</code></td>
            </tr>
          ))}
        </Table>
      )}
    </article>
  );
}
