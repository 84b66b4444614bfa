import { useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { getPages, invalidate } from '../api/queries';
import { ConfirmButton, Failure, Moment } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { Paged, Table } from './Table';

export function KeysPage() {
  const { say, nameOf } = useTexts();
  const keys = useInfiniteQuery(getPages('/v1/admin/keys', { query: { limit: 50 } }));
  return (
    <>
      <NewKey />
      <Paged query={keys}>
        {(items) => (
          <Table label={say('admin.keys')} heads={[say('key.name'), say('key.kind'), say('key.prefix'), say('key.scopes'), say('key.state'), say('approval.created'), say('admin.action')]}>
            {items.map((key) => (
              <tr key={key.id}>
                <th scope="row">{key.name}</th>
                <td>{nameOf('key.kind', key.kind)}</td>
                <td><code>chk_{key.prefix}_…</code></td>
                <td>{key.scopes.join(', ')}</td>
                <td><span className={`state ${key.state}`}>{nameOf('key.state', key.state)}</span></td>
                <td><Moment at={key.created_at} /></td>
                <td>{key.state === 'live' && <RevokeKey id={key.id} />}</td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}

type Kind = 'service' | 'open-webui' | 'librechat';
const KINDS: Kind[] = ['service', 'open-webui', 'librechat'];

/** A key for a program that speaks for itself, or for a frontend that speaks for its users. It is shown once. */
function NewKey() {
  const { say } = useTexts();
  const [name, setName] = useState('');
  const [kind, setKind] = useState<Kind>('service');
  const [roles, setRoles] = useState('');
  const [isAdmin, setIsAdmin] = useState(false);
  const [made, setMade] = useState<Schemas['MadeKey']>();
  const { isBusy, error, run } = useAction();
  const make = () => run(async () => {
    const claims = { roles: roles.split(/[\s,]+/).filter(Boolean) };
    const body = kind === 'service'
      ? { name, scopes: isAdmin ? ['chat', 'admin'] : ['chat'], claims }
      : { name, scopes: ['chat'], frontend: { preset: kind } };
    setMade(await read(api.POST('/v1/admin/keys', { body })));
    setName('');
    await invalidate('/v1/admin/keys');
  });
  return (
    <form className="card" onSubmit={(event) => { event.preventDefault(); void make(); }}>
      <div className="filters">
        <label>{say('key.name')}<input required value={name} onChange={(event) => setName(event.target.value)} /></label>
        <label>{say('key.kind')}
          <select value={kind} onChange={(event) => setKind(event.target.value as Kind)}>
            {KINDS.map((one) => <option key={one} value={one}>{say(`key.kind.${one}`)}</option>)}
          </select>
        </label>
        {kind === 'service' && <label>{say('key.roles')}<input value={roles} onChange={(event) => setRoles(event.target.value)} /></label>}
        {kind === 'service' && (
          <label className="check"><span>{say('key.admin')}</span><input type="checkbox" checked={isAdmin} onChange={(event) => setIsAdmin(event.target.checked)} /></label>
        )}
        <button type="submit" className="primary" disabled={isBusy || !name}>{say('key.make')}</button>
      </div>
      {made && <p role="status" className="made">{say('key.made')} <code>{made.key}</code></p>}
      <Failure error={error} />
    </form>
  );
}

function RevokeKey({ id }: { id: string }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const revoke = () => run(async () => {
    await read(api.DELETE('/v1/admin/keys/{id}', { params: { path: { id } } }));
    await invalidate('/v1/admin/keys');
  });
  return <><ConfirmButton label={say('key.revoke')} question={say('key.revoke.sure')} disabled={isBusy} onConfirm={() => void revoke()} /><Failure error={error} /></>;
}
