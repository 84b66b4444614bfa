import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { api, read, type Schemas } from '../../api/client';
import { get, invalidate } from '../../api/queries';
import { ConfirmButton, Failure, Moment, Pending } from '../../parts/parts';
import { useAction } from '../../parts/useAction';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { Table } from '../Table';
import { UserUsage } from './UserUsage';
import { WhyNot } from './WhyNot';

/** One user: what they have, what they may use and why not the rest, and an end to their sessions. */
export function UserPage({ user }: { user: string }) {
  const { say } = useTexts();
  const seen = useQuery(get('/v1/admin/users/{user}', { path: { user } }));
  return (
    <>
      <p><Link {...toAdmin('users')}>← {say('admin.users')}</Link></p>
      <h2>{user}</h2>
      {seen.data ? <Facts seen={seen.data} /> : <Pending query={seen} />}
      <UserUsage user={user} />
      <WhyNot user={user} />
    </>
  );
}

function Facts({ seen }: { seen: Schemas['UserView'] }) {
  const { say, nameOf } = useTexts();
  const facts: [string, number][] = [
    [say('admin.conversations'), seen.conversations], [say('admin.approvals'), seen.open_approvals], [say('admin.runs'), seen.runs_today],
    [say('admin.tokens'), seen.tokens_today], [say('admin.calls'), seen.tool_calls_today],
  ];
  return (
    <>
      {seen.last_seen && <p className="muted">{say('admin.seen')}: <Moment at={seen.last_seen} /></p>}
      <dl className="totals">{facts.map(([name, count]) => <div key={name}><dt>{name}</dt><dd>{count}</dd></div>)}</dl>
      {seen.agents.length > 0 && <Roles agents={seen.agents} />}
      {seen.credentials.length > 0 && (
        <Table label={say('nav.connections')} heads={[say('approval.agent'), say('audit.server'), say('key.state')]}>
          {seen.credentials.map((one) => (
            <tr key={`${one.agent} ${one.server}`}><td>{one.agent}</td><td>{one.server}{one.sign_in && <SignIn signIn={one.sign_in} />}</td><td><span className={`state ${one.state}`}>{nameOf('credential', one.state)}</span></td></tr>
          ))}
        </Table>
      )}
      <Ends user={seen.id} hasCredentials={seen.credentials.length > 0} />
    </>
  );
}

/** Where a user signed in, for what and since when. */
function SignIn({ signIn }: { signIn: Schemas['ServerSignIn'] }) {
  return <small className="muted"> {signIn.issuer} {signIn.scopes.join(' ')} <Moment at={signIn.since} /></small>;
}

/** What the user is to each agent, by their newest token. */
function Roles({ agents }: { agents: Schemas['AgentRoles'][] }) {
  const { say } = useTexts();
  return (
    <Table label={say('user.roles')} heads={[say('approval.agent'), say('user.roles')]}>
      {agents.map(({ agent, roles, admin }) => (
        <tr key={agent}>
          <td>{agent}</td>
          <td className="line">
            {roles.map((role) => <span key={role} className="state">{role}</span>)}
            {admin && <span className="state active">{say('user.admin')}</span>}
            {roles.length === 0 && !admin && <span className="muted">{say('user.roles.none')}</span>}
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Ends({ user, hasCredentials }: { user: string; hasCredentials: boolean }) {
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
  return (
    <div className="buttons">
      {isDone ? <span role="status">{say('admin.signedout')}</span> : <ConfirmButton label={say('signout')} question={say('admin.signout')} disabled={isBusy} onConfirm={() => void signOut()} />}
      {hasCredentials && <ConfirmButton label={say('admin.credentials.remove')} question={say('connection.remove')} disabled={isBusy} onConfirm={() => void removeCredentials()} />}
      <Failure error={error} />
    </div>
  );
}
