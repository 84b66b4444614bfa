import { keepPreviousData, useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { getPages, TYPING } from '../../api/queries';
import { TextEntry } from '../../parts/Field';
import { PageLink } from '../../parts/PageLink';
import { Moment } from '../../parts/parts';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { UserPage } from './UserPage';
import { Cell, NumberCell, NumberHead, Paged, Row, RowHead, Table } from '../Table';

const COUNTS = ['admin.conversations', 'admin.approvals', 'admin.runs', 'admin.tokens', 'admin.calls'] as const;

export function UsersPage({ item }: { item: string }) {
  return item ? <UserPage key={item} user={item} /> : <UserList />;
}

function UserList() {
  const { say } = useTexts();
  const [prefix, setPrefix] = useState('');
  const query = { ...(prefix && { prefix }), limit: 50 };
  const users = useInfiniteQuery({ ...getPages('/v1/admin/users', { query }, prefix ? TYPING : 0), placeholderData: keepPreviousData });
  return (
    <>
      <div className="filters"><TextEntry label={say('admin.prefix')} type="search" value={prefix} onChange={setPrefix} /></div>
      <Paged query={users}>
        {(items) => (
          <Table label={say('admin.users')} heads={[say('admin.user'), say('admin.seen'), ...COUNTS.map((name) => <NumberHead key={name}>{say(name)}</NumberHead>)]}>
            {items.map((user) => (
              <Row key={user.id}>
                <RowHead><PageLink {...toAdmin('users', user.id)}>{user.id}</PageLink></RowHead>
                <Cell>{user.last_seen && <Moment at={user.last_seen} />}</Cell>
                <NumberCell>{user.conversations}</NumberCell>
                <NumberCell>{user.open_approvals}</NumberCell>
                <NumberCell>{user.runs_today}</NumberCell>
                <NumberCell>{user.tokens_today}</NumberCell>
                <NumberCell>{user.tool_calls_today}</NumberCell>
              </Row>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}
