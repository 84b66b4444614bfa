import { Button, Code } from '@radix-ui/themes';
import { useInfiniteQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Plus } from 'lucide-react';
import { getPages } from '../../api/queries';
import { PageLink } from '../../parts/PageLink';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { EntryPage } from './EntryPage';
import { OAuthClients } from './OAuthClients';
import { Secrets } from './Secrets';
import { Cell, NumberCell, NumberHead, Paged, Row, RowHead, Table } from '../Table';

/** The address of an entry that is not there yet. No id has this form. */
const NEW = '+';

export function RegistryPage({ item }: { item: string }) {
  if (item) return <EntryPage key={item} id={item === NEW ? '' : item} />;
  return <><Entries /><Secrets /><OAuthClients /></>;
}

function Entries() {
  const { say } = useTexts();
  const entries = useInfiniteQuery(getPages('/v1/mcp-servers', { query: { limit: 50 } }));
  return (
    <>
      <div><Button asChild><Link {...toAdmin('servers', NEW)}><Plus size={18} /> {say('server.new')}</Link></Button></div>
      <Paged query={entries} empty="registry.none">
        {(items) => (
          <Table label={say('admin.servers')} heads={[say('server.id'), say('server.name'), say('server.url'), <NumberHead key="keys">{say('server.keys')}</NumberHead>]}>
            {items.map((entry) => (
              <Row key={entry.id}>
                <RowHead><PageLink {...toAdmin('servers', entry.id ?? '')}><Code variant="ghost">{entry.id}</Code></PageLink></RowHead>
                <Cell>{entry.name}</Cell>
                <Cell><Code variant="ghost">{entry.url}</Code></Cell>
                <NumberCell>{Object.keys(entry.config_schema ?? {}).length}</NumberCell>
              </Row>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}
