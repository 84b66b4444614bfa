import { useQueries, useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { get } from '../../api/queries';
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
    <section className="card">
      <h3>{say('server.used')}</h3>
      {missing && <Pending query={missing} />}
      {!missing && uses.length === 0 && <p className="muted">{say('server.used.none')}</p>}
      <ul>{uses.map(({ agent, server }) => <li key={`${agent} ${server}`}><Link {...toAdmin('agents', agent)}>{agent}</Link> · <code>{server}</code></li>)}</ul>
    </section>
  );
}
