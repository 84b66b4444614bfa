import { useInfiniteQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Plus } from 'lucide-react';
import { getPages } from '../../api/queries';
import { toAdmin } from '../../links';
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
  const entries = useInfiniteQuery(getPages('/v1/mcp-servers', { query: { limit: 50 } }));
  return (
    <>
      <div><Link className="button primary" {...toAdmin('servers', NEW)}><Plus size={18} /> {say('server.new')}</Link></div>
      <Paged query={entries}>
        {(items) => (
          <Table label={say('admin.servers')} heads={[say('server.id'), say('server.name'), say('server.url'), say('server.description')]}>
            {items.map((entry) => (
              <tr key={entry.id}>
                <th scope="row"><Link {...toAdmin('servers', entry.id ?? '')}><code>{entry.id}</code></Link></th>
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
