import { useState } from 'react';
import { api, read } from '../../api/client';
import { ConfirmButton, Failure, Moment } from '../../parts/parts';
import { useAction, useLoad } from '../../parts/useLoad';
import { useTexts } from '../../texts/texts';
import { Table } from '../Table';

/** Secrets that entries name as `{"$secret": …}`. They are written here and never shown. */
export function Secrets() {
  const { say } = useTexts();
  const secrets = useLoad('secrets', () => read(api.GET('/v1/secrets')));
  return (
    <>
      <h2>{say('secrets')}</h2>
      <NewSecret onDone={secrets.reload} />
      {secrets.error && <Failure error={secrets.error} retry={secrets.reload} />}
      {secrets.data && secrets.data.items.length > 0 && (
        <Table label={say('secrets')} heads={[say('key.name'), say('secrets.changed'), say('admin.action')]}>
          {secrets.data.items.map((secret) => (
            <tr key={secret.name}>
              <th scope="row"><code>{secret.name}</code></th>
              <td><Moment at={secret.updated_at} /></td>
              <td><RemoveSecret name={secret.name} onDone={secrets.reload} /></td>
            </tr>
          ))}
        </Table>
      )}
    </>
  );
}

function NewSecret({ onDone }: { onDone: () => void }) {
  const { say } = useTexts();
  const [name, setName] = useState('');
  const [value, setValue] = useState('');
  const { isBusy, error, run } = useAction();
  const store = () => run(async () => {
    await read(api.PUT('/v1/secrets/{name}', { params: { path: { name } }, body: { value } }));
    setName('');
    setValue('');
    onDone();
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

function RemoveSecret({ name, onDone }: { name: string; onDone: () => void }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/secrets/{name}', { params: { path: { name } } }));
    onDone();
  });
  return <><ConfirmButton label={say('remove')} question={say('secrets.remove')} disabled={isBusy} onConfirm={() => void remove()} /><Failure error={error} /></>;
}
