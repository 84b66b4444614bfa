import { Code, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { api, read } from '../../api/client';
import { get, invalidate } from '../../api/queries';
import { ConfirmButton, Failure, Moment } from '../../parts/parts';
import { useAction } from '../../parts/useAction';
import { useTexts } from '../../texts/texts';
import { Cell, Row, RowHead, Table } from '../Table';

/** The clients that were registered at authorization servers, so that users can sign in at servers. */
export function OAuthClients() {
  const { say } = useTexts();
  const clients = useQuery(get('/v1/oauth-clients'));
  if (clients.data?.items.length === 0) return null;
  return (
    <>
      <Heading as="h2" size="4">{say('clients')}</Heading>
      <Text as="p" size="2" color="gray">{say('clients.about')}</Text>
      <Failure error={clients.error} retry={() => void clients.refetch()} />
      {clients.data && (
        <Table label={say('clients')} heads={[say('clients.issuer'), say('clients.registered'), say('clients.back'), say('admin.action')]}>
          {clients.data.items.map((client) => (
            <Row key={client.id}>
              <RowHead><Code variant="ghost">{client.issuer}</Code></RowHead>
              <Cell><Moment at={client.registered_at} /></Cell>
              <Cell>{client.unknown_since ? say('clients.unknown') : client.came_back_at && <Moment at={client.came_back_at} />}</Cell>
              <Cell><ForgetClient id={client.id} /></Cell>
            </Row>
          ))}
        </Table>
      )}
    </>
  );
}

function ForgetClient({ id }: { id: string }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const forget = () => run(async () => {
    await read(api.DELETE('/v1/oauth-clients/{id}', { params: { path: { id } } }));
    await invalidate('/v1/oauth-clients');
  });
  return <><ConfirmButton label={say('clients.forget')} question={say('clients.forget.ask')} disabled={isBusy} onConfirm={() => void forget()} /><Failure error={error} /></>;
}
