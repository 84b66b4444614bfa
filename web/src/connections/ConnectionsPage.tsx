import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { get, invalidate } from '../api/queries';
import { EntryField } from '../parts/EntryField';
import { ConfirmButton, Empty, Failure, Pending } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { toConnections } from '../links';
import { useMe } from '../signin/session';
import { useTexts, type TextKey } from '../texts/texts';

/** The servers of an agent, and what the user has entered for them. */
export function ConnectionsPage({ agent }: { agent: string }) {
  const { say } = useTexts();
  const navigate = useNavigate();
  const agents = useQuery(get('/v1/agents'));
  const first = agents.data?.items[0]?.id;
  const chosen = agent || first;
  return (
    <main className="page">
      <h1>{say('nav.connections')}</h1>
      {agents.data && agents.data.items.length > 1 && (
        <label>{say('approval.agent')} <select value={chosen} onChange={(event) => void navigate(toConnections(event.target.value))}>
          {agents.data.items.map((item) => <option key={item.id} value={item.id}>{item.display_name}</option>)}
        </select></label>
      )}
      {chosen ? <Servers key={chosen} agent={chosen} /> : agents.data ? <Empty>{say('chat.agents.none')}</Empty> : <Pending query={agents} />}
    </main>
  );
}

function Servers({ agent }: { agent: string }) {
  const { say } = useTexts();
  const servers = useQuery(get('/v1/agents/{agent}/connections', { path: { agent } }));
  if (!servers.data) return <Pending query={servers} />;
  if (servers.data.items.length === 0) return <Empty>{say('connections.none')}</Empty>;
  return (
    <ul className="cards">
      {servers.data.items.map((view) => <li key={view.server}><ServerCard agent={agent} view={view} /></li>)}
    </ul>
  );
}

type View = Schemas['ConnectionView'];

function ServerCard({ agent, view }: { agent: string; view: View }) {
  const { say } = useTexts();
  const { authenticated } = useMe();
  const isPersonal = view.kind === 'personal';
  return (
    <article className="card" aria-label={view.server}>
      <header>
        <h2>{view.server}</h2>
        <span className={`state ${view.state}`}>{say(`connection.${view.state}` satisfies TextKey)}</span>
      </header>
      <p className="muted">{say(isPersonal ? 'connection.personal' : 'connection.shared')} · {say('connection.tools', { count: view.tools })}</p>
      {'reason' in view && <p className="reason">{view.state === 'needs_attention' ? say('connection.again') : view.reason}</p>}
      {view.dropped.length > 0 && <p className="muted">{say('connection.dropped')}: {view.dropped.join(', ')}</p>}
      {view.missing.length > 0 && <p className="muted">{say('connection.missing')}: {view.missing.join(', ')}</p>}
      {isPersonal && (authenticated ? <Personal agent={agent} view={view} /> : <p>{say('connection.guest')}</p>)}
      {view.tools > 0 && <Tools agent={agent} server={view.server} />}
    </article>
  );
}

/** What the server offers to this user. */
function Tools({ agent, server }: { agent: string; server: string }) {
  const { say } = useTexts();
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>{say('connection.offers')}</summary>
      {isOpen && <ToolList agent={agent} server={server} />}
    </details>
  );
}

function ToolList({ agent, server }: { agent: string; server: string }) {
  const { say } = useTexts();
  const tools = useQuery(get('/v1/agents/{agent}/tools', { path: { agent } }));
  if (!tools.data) return <Pending query={tools} />;
  const own = tools.data.items.find((item) => item.server === server);
  return (
    <dl className="facts">
      {own?.tools.map((tool) => (
        <div key={tool.tool}>
          <dt><code>{tool.tool}</code></dt>
          <dd>{tool.description}{tool.needs_approval_by?.length ? <> <em>{say('connection.approval', { approvers: tool.needs_approval_by.join(', ') })}</em></> : null}</dd>
        </div>
      ))}
    </dl>
  );
}

/** What a server offers depends on what was entered for it. */
const changed = (agent: string) => Promise.all([
  invalidate('/v1/agents/{agent}/connections', { path: { agent } }), invalidate('/v1/agents/{agent}/tools', { path: { agent } }),
]);

/** Enter, replace, test, remove. */
function Personal({ agent, view }: { agent: string; view: View }) {
  const { say } = useTexts();
  const [isOpen, setIsOpen] = useState(false);
  const [tested, setTested] = useState<Schemas['Tested']>();
  const [isAwaited, setIsAwaited] = useState(false);
  const { isBusy, error, run } = useAction();
  const path = { agent, server: view.server };
  const isEntered = view.state !== 'not_configured';
  // The person is at the server's page, in another tab, which cannot tell this one.
  const isWaiting = isAwaited && view.state !== 'configured';
  useQuery({ ...get('/v1/agents/{agent}/connections', { path: { agent } }), enabled: isWaiting, refetchInterval: 2000, refetchIntervalInBackground: true });
  const test = () => run(async () => {
    setTested(await read(api.POST('/v1/agents/{agent}/connections/{server}/test', { params: { path } })));
    await changed(agent);
  });
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/agents/{agent}/connections/{server}', { params: { path } }));
    setTested(undefined);
    await changed(agent);
  });
  if (isOpen)
    return <EnterCredential path={path} onEnd={(isDone) => { setIsOpen(false); if (isDone) void changed(agent); }} onSignIn={() => { setIsOpen(false); setIsAwaited(true); }} />;
  return (
    <>
      <div className="buttons">
        <button type="button" className={isEntered ? '' : 'primary'} onClick={() => { setTested(undefined); setIsOpen(true); }}>{say(isEntered ? 'connection.replace' : 'connection.connect')}</button>
        {isEntered && <button type="button" disabled={isBusy} onClick={() => void test()}>{say('connection.test')}</button>}
        {isEntered && <ConfirmButton label={say('remove')} question={say('connection.remove')} disabled={isBusy} onConfirm={() => void remove()} />}
      </div>
      {isWaiting && <p role="status" className="muted">{say('connection.awaited')}</p>}
      {tested && <p role="status" className={tested.ok ? 'good' : 'failure'}>{tested.message}</p>}
      <Failure error={error} />
    </>
  );
}

function EnterCredential({ path, onEnd, onSignIn }: {
  path: { agent: string; server: string };
  onEnd: (isDone: boolean) => void;
  onSignIn: () => void;
}) {
  const { say } = useTexts();
  const server = useQuery(get('/v1/agents/{agent}/connections/{server}', { path }));
  const [values, setValues] = useState<Record<string, string>>({});
  const { isBusy, error, run } = useAction();
  if (!server.data) return <Pending query={server} />;
  const fields = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ''));
  const signIn = () => {
    // Opened before anything is waited for: browsers block what opens later.
    const tab = window.open('about:blank', '_blank');
    void run(async () => {
      const { url } = await read(api.POST('/v1/agents/{agent}/connections/{server}/sign-in', { params: { path } }));
      if (tab) tab.location.href = url;
      else window.location.assign(url);
    }).then((done) => { if (done) onSignIn(); else tab?.close(); });
  };
  const hasFields = server.data.fields.length > 0;
  const save = () => run(() => read(api.PUT('/v1/agents/{agent}/connections/{server}', { params: { path }, body: { fields } })));
  return (
    <form onSubmit={(event) => { event.preventDefault(); void save().then((done) => done && onEnd(true)); }}>
      {server.data.sign_in && (
        <div className="buttons">
          <button type="button" className="primary" disabled={isBusy} onClick={signIn}>{say('connection.signIn', { server: path.server })}</button>
        </div>
      )}
      {server.data.sign_in && hasFields && <p className="muted">{say('connection.orEnter')}</p>}
      {server.data.fields.map((field, at) => (
        <EntryField
          key={field.name} autoFocus={at === 0} value={values[field.name] ?? ''}
          entry={{ name: field.name, kind: field.type, label: field.label, isRequired: field.required, options: field.options ?? [] }}
          onChange={(value) => setValues((old) => ({ ...old, [field.name]: value }))}
        />
      ))}
      {hasFields && <p className="muted">{say('connection.sealed')}</p>}
      <Failure error={error} />
      <div className="buttons">
        {hasFields && <button type="submit" className={server.data.sign_in ? '' : 'primary'} disabled={isBusy}>{say(isBusy ? 'connection.testing' : 'save')}</button>}
        <button type="button" className="quiet" onClick={() => onEnd(false)}>{say('cancel')}</button>
      </div>
    </form>
  );
}
