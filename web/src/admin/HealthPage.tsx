import { useQueries, useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { api, type Schemas } from '../api/client';
import { get, invalidate } from '../api/queries';
import { Pending } from '../parts/parts';
import { toConnections } from '../links';
import { type TextKey, useTexts } from '../texts/texts';
import { NumberHead, Table } from './Table';

/** Each server of each agent as this admin reaches it, and the replica that answered. */
export function HealthPage() {
  const { say } = useTexts();
  const agents = useQuery(get('/v1/agents'));
  const names = agents.data?.items.map(({ id }) => id) ?? [];
  const lists = useQueries({ queries: names.map((agent) => get('/v1/agents/{agent}/connections', { path: { agent } })) });
  const missing = agents.data ? lists.find(({ data }) => !data) : agents;
  if (missing) return <Pending query={missing} />;
  const servers = lists.flatMap(({ data }, at) => (data?.items ?? []).map((view) => ({ agent: names[at] ?? '', view })));
  return (
    <>
      <div><button type="button" onClick={() => void Promise.all([invalidate('/v1/agents/{agent}/connections'), invalidate('/readyz')])}>{say('health.again')}</button></div>
      <Table label={say('admin.health')} heads={[say('approval.agent'), say('audit.server'), say('key.state'), <NumberHead key="tools">{say('health.tools')}</NumberHead>, say('details')]}>
        {servers.map(({ agent, view }) => (
          <tr key={`${agent} ${view.server}`}>
            <td>{agent}</td>
            <th scope="row"><Link {...toConnections(agent)}>{view.server}</Link></th>
            <td><span className={`state ${view.state}`}>{say(`connection.${view.state}` satisfies TextKey)}</span></td>
            <td className="number">{view.tools}</td>
            <td>
              {'reason' in view && <p>{view.reason}</p>}
              {view.dropped.length > 0 && <p>{say('connection.dropped')}: {view.dropped.join(', ')}</p>}
              {view.missing.length > 0 && <p>{say('connection.missing')}: {view.missing.join(', ')}</p>}
              {view.unmatched.length > 0 && <p>{say('connection.unmatched')}: {view.unmatched.join(', ')}</p>}
            </td>
          </tr>
        ))}
      </Table>
      <h2>{say('health.replica')}</h2>
      <Replica />
    </>
  );
}

const CHECKS = ['ready', 'started', 'database', 'keys', 'accepting'] as const;
const COUNTS = ['servers_ready', 'servers_down', 'personal_connections'] as const;

/** What the replica that answered says of itself. */
function Replica() {
  const { say } = useTexts();
  const replica = useQuery({ queryKey: ['/readyz'], queryFn: readReadiness });
  const view = replica.data;
  if (!view) return <Pending query={replica} />;
  return (
    <dl className="card facts wide">
      {CHECKS.map((name) => <div key={name}><dt>{say(`replica.${name}`)}</dt><dd><span className={`state ${view[name] ? 'ready' : 'down'}`}>{say(view[name] ? 'yes' : 'no')}</span></dd></div>)}
      {COUNTS.map((name) => <div key={name}><dt>{say(`replica.${name}`)}</dt><dd>{view[name]}</dd></div>)}
    </dl>
  );
}

/** A replica that is not ready answers 503 and says what it lacks. */
async function readReadiness(): Promise<Schemas['Readiness']> {
  const { data, error } = await api.GET('/readyz');
  return (data ?? error) as Schemas['Readiness'];
}
