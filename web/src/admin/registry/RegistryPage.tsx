import { Plus } from 'lucide-react';
import { api, read } from '../../api/client';
import { useLoad } from '../../parts/useLoad';
import { href } from '../../router';
import { useTexts } from '../../texts/texts';
import { Paged, Table } from '../Table';
import { EntryPage } from './EntryPage';
import { Secrets } from './Secrets';

/** The address of an entry that is not there yet. No id has this form. */
const NEW = '+';

export function RegistryPage({ item }: { item: string }) {
  if (item) return <EntryPage key={item} id={item === NEW ? '' : item} />;
  return <><Entries /><Secrets /></>;
}

function Entries() {
  const { say } = useTexts();
  const load = (after?: string) => read(api.GET('/v1/mcp-servers', { params: { query: { ...(after && { after }), limit: 50 } } }));
  const entries = useLoad('servers', load);
  return (
    <>
      <div><a className="button primary" href={href('admin', 'servers', NEW)}><Plus size={18} /> {say('server.new')}</a></div>
      <Paged loaded={entries} load={load}>
        {(items) => (
          <Table label={say('admin.servers')} heads={[say('server.id'), say('server.name'), say('server.url'), say('server.description')]}>
            {items.map((entry) => (
              <tr key={entry.id}>
                <th scope="row"><a href={href('admin', 'servers', entry.id ?? '')}><code>{entry.id}</code></a></th>
                <td>{entry.name}</td>
                <td><code>{entry.url}</code></td>
                <td>{entry.description}</td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}
