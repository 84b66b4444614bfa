import { keepPreviousData, useInfiniteQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { getPages, TYPING } from '../../api/queries';
import { Moment } from '../../parts/parts';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { NumberHead, Paged, Table } from '../Table';
import { UserPage } from './UserPage';

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
      <div className="filters"><label>{say('admin.prefix')}<input type="search" value={prefix} onChange={(event) => setPrefix(event.target.value)} /></label></div>
      <Paged query={users}>
        {(items) => (
          <Table label={say('admin.users')} heads={[say('admin.user'), say('admin.seen'), ...COUNTS.map((name) => <NumberHead key={name}>{say(name)}</NumberHead>)]}>
            {items.map((user) => (
              <tr key={user.id}>
                <th scope="row"><Link {...toAdmin('users', user.id)}>{user.id}</Link></th>
                <td>{user.last_seen && <Moment at={user.last_seen} />}</td>
                <td className="number">{user.conversations}</td>
                <td className="number">{user.open_approvals}</td>
                <td className="number">{user.runs_today}</td>
                <td className="number">{user.tokens_today}</td>
                <td className="number">{user.tool_calls_today}</td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}
