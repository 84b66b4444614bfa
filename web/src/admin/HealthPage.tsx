import { Heading } from '@radix-ui/themes';
import { useQueries, useQuery } from '@tanstack/react-query';
import { api, type Schemas } from '../api/client';
import { get, invalidate } from '../api/queries';
import { PageLink } from '../parts/PageLink';
import { Panel } from '../parts/Panel';
import { PlainButton } from '../parts/PlainButton';
import { type Fact, Facts, Pending, StateBadge } from '../parts/parts';
import { toConnections } from '../links';
import { type TextKey, useTexts } from '../texts/texts';
import { Cell, NumberCell, NumberHead, Row, RowHead, Table } from './Table';

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
      <div><PlainButton onClick={() => void Promise.all([invalidate('/v1/agents/{agent}/connections'), invalidate('/readyz')])}>{say('health.again')}</PlainButton></div>
      <Table label={say('admin.health')} heads={[say('approval.agent'), say('audit.server'), say('key.state'), <NumberHead key="tools">{say('health.tools')}</NumberHead>, say('details')]}>
        {servers.map(({ agent, view }) => (
          <Row key={`${agent} ${view.server}`}>
            <Cell>{agent}</Cell>
            <RowHead><PageLink {...toConnections(agent)}>{view.server}</PageLink></RowHead>
            <Cell><StateBadge state={view.state}>{say(`connection.${view.state}` satisfies TextKey)}</StateBadge></Cell>
            <NumberCell>{view.tools}</NumberCell>
            <Cell>
              {'reason' in view && <p>{view.reason}</p>}
              {view.dropped.length > 0 && <p>{say('connection.dropped')}: {view.dropped.join(', ')}</p>}
              {view.missing.length > 0 && <p>{say('connection.missing')}: {view.missing.join(', ')}</p>}
              {view.unmatched.length > 0 && <p>{say('connection.unmatched')}: {view.unmatched.join(', ')}</p>}
            </Cell>
          </Row>
        ))}
      </Table>
      <Heading as="h2" size="4">{say('health.replica')}</Heading>
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
    <Panel>
      <div>
        <Facts>{[
          ...CHECKS.map((name): Fact => [say(`replica.${name}`), <StateBadge state={view[name] ? 'ready' : 'down'}>{say(view[name] ? 'yes' : 'no')}</StateBadge>]),
          ...COUNTS.map((name): Fact => [say(`replica.${name}`), view[name]]),
        ]}</Facts>
      </div>
    </Panel>
  );
}

/** A replica that is not ready answers 503 and says what it lacks. */
async function readReadiness(): Promise<Schemas['Readiness']> {
  const { data, error } = await api.GET('/readyz');
  return (data ?? error) as Schemas['Readiness'];
}
