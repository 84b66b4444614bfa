import { Code, Heading, Text } from '@radix-ui/themes';
import { useQueries, useQuery } from '@tanstack/react-query';
import { get } from '../../api/queries';
import { PageLink } from '../../parts/PageLink';
import { Panel } from '../../parts/Panel';
import { Pending } from '../../parts/parts';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';

/** The agents that take this entry. */
export function UsedBy({ id }: { id: string }) {
  const { say } = useTexts();
  const agents = useQuery(get('/v1/agents'));
  const names = agents.data?.items.map((agent) => agent.id) ?? [];
  const servers = useQueries({ queries: names.map((agent) => get('/v1/agents/{agent}/servers', { path: { agent } })) });
  const missing = agents.data ? servers.find(({ data }) => !data) : agents;
  const uses = servers.flatMap(({ data }, at) => (data?.items ?? []).filter(({ ref }) => ref === id).map(({ server }) => ({ agent: names[at] ?? '', server })));
  return (
    <Panel>
      <section>
        <Heading as="h3" size="3">{say('server.used')}</Heading>
        {missing && <Pending query={missing} />}
        {!missing && uses.length === 0 && <Text as="p" size="2" color="gray">{say('server.used.none')}</Text>}
        <ul>{uses.map(({ agent, server }) => <li key={`${agent} ${server}`}><PageLink {...toAdmin('agents', agent)}>{agent}</PageLink> · <Code variant="ghost">{server}</Code></li>)}</ul>
      </section>
    </Panel>
  );
}
