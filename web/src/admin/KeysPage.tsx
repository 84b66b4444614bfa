import { Button, Code } from '@radix-ui/themes';
import { useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { getPages, invalidate } from '../api/queries';
import { CheckEntry } from '../parts/CheckEntry';
import { ChoiceEntry, TextEntry } from '../parts/Field';
import { Panel } from '../parts/Panel';
import { ConfirmButton, Failure, Moment, Notice, StateBadge } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { Cell, Paged, Row, RowHead, Table } from './Table';

export function KeysPage() {
  const { say, nameOf } = useTexts();
  const keys = useInfiniteQuery(getPages('/v1/admin/keys', { query: { limit: 50 } }));
  return (
    <>
      <NewKey />
      <Paged query={keys} empty="keys.none">
        {(items) => (
          <Table label={say('admin.keys')} heads={[say('key.name'), say('key.kind'), say('key.prefix'), say('key.scopes'), say('key.state'), say('approval.created'), say('admin.action')]}>
            {items.map((key) => (
              <Row key={key.id}>
                <RowHead>{key.name}</RowHead>
                <Cell>{nameOf('key.kind', key.kind)}</Cell>
                <Cell><Code variant="ghost">chk_{key.prefix}_…</Code></Cell>
                <Cell>{key.scopes.join(', ')}</Cell>
                <Cell><StateBadge state={key.state}>{nameOf('key.state', key.state)}</StateBadge></Cell>
                <Cell><Moment at={key.created_at} /></Cell>
                <Cell>{key.state === 'live' && <RevokeKey id={key.id} />}</Cell>
              </Row>
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
    const body: Schemas['KeyRequest'] = kind === 'service'
      ? { name, scopes: isAdmin ? ['chat', 'admin'] : ['chat'], claims }
      : { name, scopes: ['chat'], frontend: { preset: kind } };
    setMade(await read(api.POST('/v1/admin/keys', { body })));
    setName('');
    await invalidate('/v1/admin/keys');
  });
  return (
    <Panel>
      <form onSubmit={(event) => { event.preventDefault(); void make(); }}>
        <div className="filters">
          <TextEntry label={say('key.name')} required value={name} onChange={setName} />
          <ChoiceEntry
            label={say('key.kind')} value={kind} onChange={(value) => setKind(value as Kind)}
            options={KINDS.map((one) => [one, say(`key.kind.${one}`)] as const)}
          />
          {kind === 'service' && <TextEntry label={say('key.roles')} value={roles} onChange={setRoles} />}
          {kind === 'service' && <CheckEntry label={say('key.admin')} checked={isAdmin} onChange={setIsAdmin} />}
          <Button type="submit" disabled={isBusy || !name}>{say('key.make')}</Button>
        </div>
        {made && <Notice tone="good" role="status">{say('key.made')} <Code variant="ghost">{made.key}</Code></Notice>}
        <Failure error={error} />
      </form>
    </Panel>
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
