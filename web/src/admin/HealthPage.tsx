import { api, read, type Schemas } from '../api/client';
import { Failure, Loading } from '../parts/parts';
import { useLoad } from '../parts/useLoad';
import { href } from '../router';
import { type TextKey, useTexts } from '../texts/texts';
import { NumberHead, Table } from './Table';

/** Each server of each agent as this admin reaches it, and the replica that answered. */
export function HealthPage() {
  const { say } = useTexts();
  const health = useLoad('health', loadHealth);
  if (health.error) return <Failure error={health.error} retry={health.reload} />;
  if (!health.data) return <Loading />;
  const { servers, replica } = health.data;
  return (
    <>
      <div><button type="button" onClick={health.reload}>{say('health.again')}</button></div>
      <Table label={say('admin.health')} heads={[say('approval.agent'), say('audit.server'), say('key.state'), <NumberHead key="tools">{say('health.tools')}</NumberHead>, say('details')]}>
        {servers.map(({ agent, view }) => (
          <tr key={`${agent} ${view.server}`}>
            <td>{agent}</td>
            <th scope="row"><a href={href('connections', agent)}>{view.server}</a></th>
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
      <Replica view={replica} />
    </>
  );
}

const CHECKS = ['ready', 'started', 'database', 'keys', 'accepting'] as const;
const COUNTS = ['servers_ready', 'servers_down', 'personal_connections'] as const;

/** What the replica that answered says of itself. */
function Replica({ view }: { view: Schemas['Readiness'] | undefined }) {
  const { say } = useTexts();
  if (!view) return null;
  return (
    <dl className="card facts wide">
      {CHECKS.map((name) => <div key={name}><dt>{say(`replica.${name}`)}</dt><dd><span className={`state ${view[name] ? 'ready' : 'down'}`}>{say(view[name] ? 'yes' : 'no')}</span></dd></div>)}
      {COUNTS.map((name) => <div key={name}><dt>{say(`replica.${name}`)}</dt><dd>{view[name]}</dd></div>)}
    </dl>
  );
}

async function loadHealth() {
  const { items } = await read(api.GET('/v1/agents'));
  const lists = await Promise.all(items.map(async ({ id: agent }) => {
    const { items } = await read(api.GET('/v1/agents/{agent}/connections', { params: { path: { agent } } }));
    return items.map((view) => ({ agent, view }));
  }));
  // A replica that is not ready answers 503 and says what it lacks.
  const { data, error } = await api.GET('/readyz');
  return { servers: lists.flat(), replica: (data ?? error) as Schemas['Readiness'] | undefined };
}
