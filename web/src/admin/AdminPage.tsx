/** For the admins of a tenant: who is here, what happened, and which keys there are. */
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { ConfirmButton, Empty, Failure, Loading, Moment } from '../parts/parts';
import { type Loaded, useAction, useLoad } from '../parts/useLoad';
import { href } from '../router';
import { useTexts } from '../texts/texts';

const PARTS = ['users', 'audit', 'keys', 'servers'] as const;

export default function AdminPage({ part }: { part: string }) {
  const { say } = useTexts();
  const shown = PARTS.find((name) => name === part) ?? 'users';
  return (
    <main className="page wide">
      <h1>{say('nav.admin')}</h1>
      <nav className="tabs" aria-label={say('nav.admin')}>
        {PARTS.map((name) => <a key={name} href={href('admin', name)} aria-current={name === shown ? 'page' : undefined}>{say(`admin.${name}`)}</a>)}
      </nav>
      {shown === 'users' && <Users />}
      {shown === 'audit' && <Audit />}
      {shown === 'keys' && <Keys />}
      {shown === 'servers' && <Registry />}
    </main>
  );
}

interface Page<T> {
  items: T[];
  next?: string | null;
}

/** A page of a list, what follows it, and words when it is empty. */
function Paged<T>({ loaded, load, children }: {
  loaded: Loaded<Page<T>>;
  load: (next: string) => Promise<Page<T>>;
  children: (items: T[]) => React.ReactNode;
}) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  if (loaded.error) return <Failure error={loaded.error} retry={loaded.reload} />;
  if (!loaded.data) return <Loading />;
  const { items, next } = loaded.data;
  const more = () => run(async () => {
    const page = await load(next ?? '');
    loaded.setData((old) => ({ ...page, items: [...(old?.items ?? []), ...page.items] }));
  });
  return (
    <>
      {items.length === 0 ? <Empty>{say('admin.none')}</Empty> : children(items)}
      {next && <button type="button" disabled={isBusy} onClick={() => void more()}>{say('more')}</button>}
      <Failure error={error} />
    </>
  );
}

function Table({ heads, children }: { heads: string[]; children: React.ReactNode }) {
  return (
    <div className="scrolls" tabIndex={0} role="group">
      <table><thead><tr>{heads.map((head) => <th key={head} scope="col">{head}</th>)}</tr></thead><tbody>{children}</tbody></table>
    </div>
  );
}

function Users() {
  const { say } = useTexts();
  const [prefix, setPrefix] = useState('');
  const load = (after?: string) => read(api.GET('/v1/admin/users', { params: { query: { ...(prefix && { prefix }), ...(after && { after }), limit: 50 } } }));
  const users = useLoad(prefix, load);
  return (
    <>
      <label className="filter">{say('admin.prefix')} <input type="search" value={prefix} onChange={(event) => setPrefix(event.target.value)} /></label>
      <Paged loaded={users} load={load}>
        {(items) => (
          <Table heads={[say('admin.user'), say('admin.seen'), say('admin.conversations'), say('admin.runs'), say('admin.tokens'), say('admin.calls'), say('admin.action')]}>
            {items.map((user) => (
              <tr key={user.id}>
                <th scope="row">{user.id}</th>
                <td>{user.last_seen && <Moment at={user.last_seen} />}</td>
                <td className="number">{user.conversations}</td>
                <td className="number">{user.runs_today}</td>
                <td className="number">{user.tokens_today}</td>
                <td className="number">{user.tool_calls_today}</td>
                <td><SignOutUser user={user.id} /></td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}

function SignOutUser({ user }: { user: string }) {
  const { say } = useTexts();
  const [isDone, setIsDone] = useState(false);
  const { isBusy, error, run } = useAction();
  const signOut = () => run(async () => {
    await read(api.POST('/v1/admin/users/{user}/sign-out', { params: { path: { user } } }));
    setIsDone(true);
  });
  if (isDone) return <span role="status">{say('admin.signedout')}</span>;
  return <><ConfirmButton label={say('signout')} question={say('admin.signout')} disabled={isBusy} onConfirm={() => void signOut()} /><Failure error={error} /></>;
}

const FILTERS = ['actor', 'action', 'server', 'tool', 'outcome'] as const;

function Audit() {
  const { say } = useTexts();
  const [draft, setDraft] = useState<Record<string, string>>({});
  const [filter, setFilter] = useState<Record<string, string>>({});
  const load = (cursor?: string) => read(api.GET('/v1/admin/audit', { params: { query: { ...filter, ...(cursor && { cursor }), limit: 50 } } }));
  const lines = useLoad(JSON.stringify(filter), load);
  return (
    <>
      <form className="filters" onSubmit={(event) => { event.preventDefault(); setFilter(Object.fromEntries(Object.entries(draft).filter(([, value]) => value))); }}>
        {FILTERS.map((name) => (
          <label key={name}>{say(`audit.${name}`)}<input value={draft[name] ?? ''} onChange={(event) => setDraft((old) => ({ ...old, [name]: event.target.value.trim() }))} /></label>
        ))}
        <button type="submit">{say('admin.filter')}</button>
      </form>
      <Paged loaded={lines} load={load}>
        {(items) => (
          <Table heads={[say('audit.at'), say('audit.actor'), say('audit.action'), say('audit.what'), say('audit.outcome'), say('details')]}>
            {items.map((line) => (
              <tr key={line.id}>
                <td><Moment at={line.at} /></td>
                <td>{line.actor}</td>
                <td><code>{line.action}</code></td>
                <td>{[line.agent, line.server, line.tool].filter(Boolean).join(' · ')}</td>
                <td>{line.outcome}</td>
                <td>{line.detail}</td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}

function Keys() {
  const { say } = useTexts();
  const load = (cursor?: string) => read(api.GET('/v1/admin/keys', { params: { query: { ...(cursor && { cursor }), limit: 50 } } }));
  const keys = useLoad('keys', load);
  return (
    <>
      <NewKey onMade={keys.reload} />
      <Paged loaded={keys} load={load}>
        {(items) => (
          <Table heads={[say('key.name'), say('key.kind'), say('key.prefix'), say('key.scopes'), say('key.state'), say('approval.created'), say('admin.action')]}>
            {items.map((key) => (
              <tr key={key.id}>
                <th scope="row">{key.name}</th>
                <td>{key.kind}</td>
                <td><code>chk_{key.prefix}_…</code></td>
                <td>{key.scopes.join(', ')}</td>
                <td>{key.state}</td>
                <td><Moment at={key.created_at} /></td>
                <td>{key.state === 'live' && <RevokeKey id={key.id} onDone={keys.reload} />}</td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}

/** A key for a program that speaks for itself. It is shown once. */
function NewKey({ onMade }: { onMade: () => void }) {
  const { say } = useTexts();
  const [name, setName] = useState('');
  const [roles, setRoles] = useState('');
  const [made, setMade] = useState<Schemas['MadeKey']>();
  const { isBusy, error, run } = useAction();
  const make = () => run(async () => {
    const claims = { roles: roles.split(/[\s,]+/).filter(Boolean) };
    setMade(await read(api.POST('/v1/admin/keys', { body: { name, scopes: ['chat'], claims } })));
    setName('');
    onMade();
  });
  return (
    <form className="filters" onSubmit={(event) => { event.preventDefault(); void make(); }}>
      <label>{say('key.name')}<input required value={name} onChange={(event) => setName(event.target.value)} /></label>
      <label>{say('key.roles')}<input value={roles} onChange={(event) => setRoles(event.target.value)} /></label>
      <button type="submit" disabled={isBusy || !name}>{say('key.make')}</button>
      {made && <p role="status" className="made">{say('key.made')} <code>{made.key}</code></p>}
      <Failure error={error} />
    </form>
  );
}

function RevokeKey({ id, onDone }: { id: string; onDone: () => void }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const revoke = () => run(async () => {
    await read(api.DELETE('/v1/admin/keys/{id}', { params: { path: { id } } }));
    onDone();
  });
  return <><ConfirmButton label={say('key.revoke')} question={say('key.revoke.sure')} disabled={isBusy} onConfirm={() => void revoke()} /><Failure error={error} /></>;
}

function Registry() {
  const { say } = useTexts();
  const load = (after?: string) => read(api.GET('/v1/mcp-servers', { params: { query: { ...(after && { after }), limit: 50 } } }));
  const entries = useLoad('servers', load);
  return (
    <Paged loaded={entries} load={load}>
      {(items) => (
        <Table heads={[say('server.id'), say('server.name'), say('server.url'), say('server.description')]}>
          {items.map((entry) => (
            <tr key={entry.id}>
              <th scope="row"><code>{entry.id}</code></th>
              <td>{entry.name}</td>
              <td><code>{entry.url}</code></td>
              <td>{entry.description}</td>
            </tr>
          ))}
        </Table>
      )}
    </Paged>
  );
}
