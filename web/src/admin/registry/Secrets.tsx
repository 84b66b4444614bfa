import { Button, Code, Heading } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read } from '../../api/client';
import { get, invalidate } from '../../api/queries';
import { TextEntry } from '../../parts/Field';
import { Panel } from '../../parts/Panel';
import { ConfirmButton, Failure, Moment } from '../../parts/parts';
import { useAction } from '../../parts/useAction';
import { useTexts } from '../../texts/texts';
import { Cell, Row, RowHead, Table } from '../Table';

/** Secrets that entries name as `{"$secret": …}`. They are written here and never shown. */
export function Secrets() {
  const { say } = useTexts();
  const secrets = useQuery(get('/v1/secrets'));
  return (
    <>
      <Heading as="h2" size="4">{say('secrets')}</Heading>
      <NewSecret />
      <Failure error={secrets.error} retry={() => void secrets.refetch()} />
      {secrets.data && secrets.data.items.length > 0 && (
        <Table label={say('secrets')} heads={[say('key.name'), say('secrets.changed'), say('admin.action')]}>
          {secrets.data.items.map((secret) => (
            <Row key={secret.name}>
              <RowHead><Code variant="ghost">{secret.name}</Code></RowHead>
              <Cell><Moment at={secret.updated_at} /></Cell>
              <Cell><RemoveSecret name={secret.name} /></Cell>
            </Row>
          ))}
        </Table>
      )}
    </>
  );
}

function NewSecret() {
  const { say } = useTexts();
  const [name, setName] = useState('');
  const [value, setValue] = useState('');
  const { isBusy, error, run } = useAction();
  const store = () => run(async () => {
    await read(api.PUT('/v1/secrets/{name}', { params: { path: { name } }, body: { value } }));
    setName('');
    setValue('');
    await invalidate('/v1/secrets');
  });
  return (
    <Panel>
      <form onSubmit={(event) => { event.preventDefault(); void store(); }}>
        <div className="filters">
          <TextEntry label={say('secrets.name')} required value={name} onChange={setName} />
          <TextEntry label={say('secrets.value')} type="password" autoComplete="off" required value={value} onChange={setValue} />
          <Button type="submit" disabled={isBusy}>{say('secrets.store')}</Button>
        </div>
        <Failure error={error} />
      </form>
    </Panel>
  );
}

function RemoveSecret({ name }: { name: string }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/secrets/{name}', { params: { path: { name } } }));
    await invalidate('/v1/secrets');
  });
  return <><ConfirmButton label={say('remove')} question={say('secrets.remove')} disabled={isBusy} onConfirm={() => void remove()} /><Failure error={error} /></>;
}
