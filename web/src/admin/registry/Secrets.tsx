import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read } from '../../api/client';
import { get, invalidate } from '../../api/queries';
import { ConfirmButton, Failure, Moment } from '../../parts/parts';
import { useAction } from '../../parts/useAction';
import { useTexts } from '../../texts/texts';
import { Table } from '../Table';

/** Secrets that entries name as `{"$secret": …}`. They are written here and never shown. */
export function Secrets() {
  const { say } = useTexts();
  const secrets = useQuery(get('/v1/secrets'));
  return (
    <>
      <h2>{say('secrets')}</h2>
      <NewSecret />
      <Failure error={secrets.error} retry={() => void secrets.refetch()} />
      {secrets.data && secrets.data.items.length > 0 && (
        <Table label={say('secrets')} heads={[say('key.name'), say('secrets.changed'), say('admin.action')]}>
          {secrets.data.items.map((secret) => (
            <tr key={secret.name}>
              <th scope="row"><code>{secret.name}</code></th>
              <td><Moment at={secret.updated_at} /></td>
              <td><RemoveSecret name={secret.name} /></td>
            </tr>
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
    <form className="card" onSubmit={(event) => { event.preventDefault(); void store(); }}>
      <div className="filters">
        <label>{say('secrets.name')}<input required value={name} onChange={(event) => setName(event.target.value)} /></label>
        <label>{say('secrets.value')}<input type="password" autoComplete="off" required value={value} onChange={(event) => setValue(event.target.value)} /></label>
        <button type="submit" className="primary" disabled={isBusy}>{say('secrets.store')}</button>
      </div>
      <Failure error={error} />
    </form>
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
