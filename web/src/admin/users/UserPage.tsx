import { Flex, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read, type Schemas } from '../../api/client';
import { get, invalidate } from '../../api/queries';
import { PageLink } from '../../parts/PageLink';
import { ConfirmButton, Failure, Moment, Pending, StateBadge } from '../../parts/parts';
import { useAction } from '../../parts/useAction';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { UserUsage } from './UserUsage';
import { WhyNot } from './WhyNot';
import { Cell, Row, Table } from '../Table';
import { Totals } from '../Totals';

/** One user: what they have, what they may use and why not the rest, and an end to their sessions. */
export function UserPage({ user }: { user: string }) {
  const { say } = useTexts();
  const seen = useQuery(get('/v1/admin/users/{user}', { path: { user } }));
  return (
    <>
      <p><PageLink {...toAdmin('users')}>← {say('admin.users')}</PageLink></p>
      <Heading as="h2" size="4">{user}</Heading>
      {seen.data ? <Seen seen={seen.data} /> : <Pending query={seen} />}
      <UserUsage user={user} />
      <WhyNot user={user} />
    </>
  );
}

function Seen({ seen }: { seen: Schemas['UserView'] }) {
  const { say, nameOf } = useTexts();
  const facts: [string, number][] = [
    [say('admin.conversations'), seen.conversations], [say('admin.approvals'), seen.open_approvals], [say('admin.runs'), seen.runs_today],
    [say('admin.tokens'), seen.tokens_today], [say('admin.calls'), seen.tool_calls_today],
  ];
  return (
    <>
      {seen.last_seen && <Text as="p" size="2" color="gray">{say('admin.seen')}: <Moment at={seen.last_seen} /></Text>}
      <Totals>{facts}</Totals>
      {seen.agents.length > 0 && <Roles agents={seen.agents} />}
      {seen.credentials.length > 0 && (
        <Table label={say('nav.connections')} heads={[say('approval.agent'), say('audit.server'), say('key.state')]}>
          {seen.credentials.map((one) => (
            <Row key={`${one.agent} ${one.server}`}><Cell>{one.agent}</Cell><Cell>{one.server}{one.sign_in && <SignIn signIn={one.sign_in} />}</Cell><Cell><StateBadge state={one.state}>{nameOf('credential', one.state)}</StateBadge></Cell></Row>
          ))}
        </Table>
      )}
      {seen.blocked_at && <Text as="p" size="2" color="red">{say('admin.blocked')}: {seen.blocked_by}, <Moment at={seen.blocked_at} /></Text>}
      <Ends user={seen.id} hasCredentials={seen.credentials.length > 0} isBlocked={Boolean(seen.blocked_at)} />
    </>
  );
}

/** Where a user signed in, for what and since when. */
function SignIn({ signIn }: { signIn: Schemas['ServerSignIn'] }) {
  return <Text as="div" size="1" color="gray">{signIn.issuer} {signIn.scopes.join(' ')} <Moment at={signIn.since} /></Text>;
}

/** What the user is to each agent, by their newest token. */
function Roles({ agents }: { agents: Schemas['AgentRoles'][] }) {
  const { say } = useTexts();
  return (
    <Table label={say('user.roles')} heads={[say('approval.agent'), say('user.roles')]}>
      {agents.map(({ agent, roles, admin, left_out }) => (
        <Row key={agent}>
          <Cell>{agent}</Cell>
          <Cell>
            <Flex gap="1" wrap="wrap">
              {roles.map((role) => <StateBadge key={role}>{role}</StateBadge>)}
              {admin && <StateBadge state="active">{say('user.admin')}</StateBadge>}
              {roles.length === 0 && !admin && <Text color="gray">{say('user.roles.none')}</Text>}
              {left_out && <Text color="red">{left_out}</Text>}
            </Flex>
          </Cell>
        </Row>
      ))}
    </Table>
  );
}

function Ends({ user, hasCredentials, isBlocked }: { user: string; hasCredentials: boolean; isBlocked: boolean }) {
  const { say } = useTexts();
  const [isDone, setIsDone] = useState(false);
  const { isBusy, error, run } = useAction();
  const signOut = () => run(async () => {
    await read(api.POST('/v1/admin/users/{user}/sign-out', { params: { path: { user } } }));
    setIsDone(true);
  });
  const removeCredentials = () => run(async () => {
    await read(api.DELETE('/v1/admin/users/{user}/credentials', { params: { path: { user } } }));
    await invalidate('/v1/admin/users/{user}', { path: { user } });
  });
  const path = { user };
  const setBlocked = (block: boolean) => run(async () => {
    await read(block ? api.POST('/v1/admin/users/{user}/block', { params: { path } }) : api.DELETE('/v1/admin/users/{user}/block', { params: { path } }));
    await invalidate('/v1/admin/users/{user}', { path });
  });
  return (
    <Flex gap="2" wrap="wrap" align="center">
      {isDone ? <span role="status">{say('admin.signedout')}</span> : <ConfirmButton label={say('signout')} question={say('admin.signout')} disabled={isBusy} onConfirm={() => void signOut()} />}
      {hasCredentials && <ConfirmButton label={say('admin.credentials.remove')} question={say('connection.remove')} disabled={isBusy} onConfirm={() => void removeCredentials()} />}
      {isBlocked
        ? <ConfirmButton label={say('admin.unblock')} question={say('admin.unblock.ask')} disabled={isBusy} onConfirm={() => void setBlocked(false)} />
        : <ConfirmButton label={say('admin.block')} question={say('admin.block.ask')} disabled={isBusy} onConfirm={() => void setBlocked(true)} />}
      <Failure error={error} />
    </Flex>
  );
}
