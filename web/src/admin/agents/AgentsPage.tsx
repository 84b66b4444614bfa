import { Code, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import type { Schemas } from '../../api/client';
import { get } from '../../api/queries';
import { PageLink } from '../../parts/PageLink';
import { Panel } from '../../parts/Panel';
import { Empty, Notice, Pending, StateBadge } from '../../parts/parts';
import { valueText } from '../../parts/values';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { AgentChoice } from './AgentChoice';
import { DryRun } from './DryRun';
import { ServerSettings } from './ServerSettings';
import { Cell, Row, RowHead, Table } from '../Table';

type ServerView = Schemas['List_ServerView']['items'][number];

/** What an agent's servers are configured with, and which level said so. */
export function AgentsPage({ item }: { item: string }) {
  return <AgentChoice part="agents" agent={item}>{(agent) => <Inherited key={agent} agent={agent} />}</AgentChoice>;
}

function Inherited({ agent }: { agent: string }) {
  const { say } = useTexts();
  const servers = useQuery(get('/v1/agents/{agent}/servers', { path: { agent }, query: { explain: true } }));
  if (!servers.data) return <Pending query={servers} />;
  return (
    <>
      {servers.data.items.length === 0 && <Empty>{say('agents.none')}</Empty>}
      {servers.data.items.map((view) => <ServerCard key={view.server} view={view} />)}
      <DryRun agent={agent} servers={servers.data.items} />
      <ServerSettings owner={{ level: 'agent', name: agent }} />
    </>
  );
}

function ServerCard({ view }: { view: ServerView }) {
  const { say } = useTexts();
  const { explained, connection } = view;
  return (
    <Panel>
      <article aria-label={view.server}>
        <header>
          <Heading as="h2" size="4">{view.server}</Heading>
          {view.per_run && <StateBadge>{say('agents.per_run')}</StateBadge>}
          {connection && <StateBadge state={connection.state}>{say(`connection.${connection.state}`)}</StateBadge>}
        </header>
        <Text as="p" size="2" color="gray">{view.description} <PageLink {...toAdmin('servers', view.ref)}><Code variant="ghost">{view.ref}</Code></PageLink></Text>
        {explained?.url && <p><Code variant="ghost">{explained.url}</Code></p>}
        {explained?.problem && <Notice tone="bad">{explained.problem}</Notice>}
        {explained && explained.config.length > 0 && (
          <Table label={view.server} heads={[say('server.key'), say('agents.value'), say('agents.level'), say('agents.note'), say('agents.header')]}>
            {explained.config.map((key) => (
              <Row key={key.key}>
                <RowHead><Code variant="ghost">{key.key}</Code>{key.required && <Text color="gray"> {say('agents.required')}</Text>}</RowHead>
                <Cell>{key.value === undefined ? <Text color="gray">{say('agents.unset')}</Text> : <Code variant="ghost" className="value">{valueText(key.value)}</Code>}</Cell>
                <Cell>{key.origin && <StateBadge>{key.origin}</StateBadge>}</Cell>
                <Cell>{key.note}</Cell>
                <Cell><Code variant="ghost">{key.header}</Code></Cell>
              </Row>
            ))}
          </Table>
        )}
      </article>
    </Panel>
  );
}
