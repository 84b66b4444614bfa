import { Heading } from '@radix-ui/themes';
import { useQueries, useQuery } from '@tanstack/react-query';
import { get, invalidate } from '../api/queries';
import { PageLink } from '../parts/PageLink';
import { Panel } from '../parts/Panel';
import { PlainButton } from '../parts/PlainButton';
import { type Fact, Facts, Moment, Pending, StateBadge } from '../parts/parts';
import { toConnections } from '../links';
import { type TextKey, useTexts } from '../texts/texts';
import { Cell, NumberCell, NumberHead, Row, RowHead, Table } from './Table';

/** Each server of each agent as this admin reaches it, and the replicas. */
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
      <div><PlainButton onClick={() => void Promise.all([invalidate('/v1/agents/{agent}/connections'), invalidate('/v1/admin/replicas')])}>{say('health.again')}</PlainButton></div>
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
      <Heading as="h2" size="4">{say('health.replicas')}</Heading>
      <Replicas />
    </>
  );
}

const CHECKS = ['ready', 'started', 'database', 'keys', 'accepting'] as const;
const COUNTS = ['servers_ready', 'servers_down', 'personal_connections'] as const;

/** What each replica says of itself. */
function Replicas() {
  const { say } = useTexts();
  const replicas = useQuery(get('/v1/admin/replicas'));
  if (!replicas.data) return <Pending query={replicas} />;
  return replicas.data.items.map((replica) => (
    <Panel key={replica.id}>
      <div>
        <Facts>{[
          [say('replica.id'), replica.id],
          [say('replica.version'), replica.version],
          [say('replica.since'), <Moment at={replica.started_at} />],
          [say('replica.seen'), <StateBadge state={replica.silent ? 'down' : 'ready'}><Moment at={replica.seen_at} /></StateBadge>],
          ...CHECKS.map((name): Fact => [say(`replica.${name}`), <StateBadge state={replica.readiness[name] ? 'ready' : 'down'}>{say(replica.readiness[name] ? 'yes' : 'no')}</StateBadge>]),
          ...COUNTS.map((name): Fact => [say(`replica.${name}`), replica.readiness[name]]),
        ]}</Facts>
      </div>
    </Panel>
  ));
}
