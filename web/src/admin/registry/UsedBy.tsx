import { api, read } from '../../api/client';
import { Failure, Loading } from '../../parts/parts';
import { useLoad } from '../../parts/useLoad';
import { href } from '../../router';
import { useTexts } from '../../texts/texts';

/** The agents that take this entry. */
export function UsedBy({ id }: { id: string }) {
  const { say } = useTexts();
  const uses = useLoad(id, () => loadUses(id));
  return (
    <section className="card">
      <h3>{say('server.used')}</h3>
      {uses.error && <Failure error={uses.error} retry={uses.reload} />}
      {!uses.data && !uses.error && <Loading />}
      {uses.data?.length === 0 && <p className="muted">{say('server.used.none')}</p>}
      <ul>{uses.data?.map(({ agent, server }) => <li key={`${agent} ${server}`}><a href={href('admin', 'agents', agent)}>{agent}</a> · <code>{server}</code></li>)}</ul>
    </section>
  );
}

async function loadUses(id: string): Promise<{ agent: string; server: string }[]> {
  const { items } = await read(api.GET('/v1/agents'));
  const uses = await Promise.all(items.map(async ({ id: agent }) => {
    const servers = await read(api.GET('/v1/agents/{agent}/servers', { params: { path: { agent } } }));
    return servers.items.filter(({ ref }) => ref === id).map(({ server }) => ({ agent, server }));
  }));
  return uses.flat();
}
