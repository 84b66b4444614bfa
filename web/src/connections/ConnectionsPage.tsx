import { Button, Code, Flex, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { createLazyRoute, useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { get, invalidate } from '../api/queries';
import { ChoiceEntry } from '../parts/Field';
import { Panel } from '../parts/Panel';
import { PlainButton } from '../parts/PlainButton';
import { ConfirmButton, Empty, Facts, Failure, Notice, Pending, StateBadge } from '../parts/parts';
import { EntryField } from '../parts/EntryField';
import { useAction } from '../parts/useAction';
import { toConnections } from '../links';
import { useMe } from '../signin/session';
import { useTexts, type TextKey } from '../texts/texts';

export const route = createLazyRoute('/connections/{-$agent}')({ component: ConnectionsPage });

/** The servers of an agent, and what the user has entered for them. */
function ConnectionsPage() {
  const { agent } = route.useParams();
  const { say } = useTexts();
  const navigate = useNavigate();
  const agents = useQuery(get('/v1/agents'));
  const first = agents.data?.items[0]?.id;
  const chosen = agent || first;
  return (
    <main className="page">
      <Heading as="h1" size="6">{say('nav.connections')}</Heading>
      {agents.data && agents.data.items.length > 1 && (
        <div className="filters">
          <ChoiceEntry
            label={say('approval.agent')} value={chosen} onChange={(id) => void navigate(toConnections(id))}
            options={agents.data.items.map((item) => [item.id, item.display_name] as const)}
          />
        </div>
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
    <Panel>
      <article aria-label={view.server}>
        <header>
          <Heading as="h2" size="3">{view.server}</Heading>
          <StateBadge state={view.state}>{say(`connection.${view.state}` satisfies TextKey)}</StateBadge>
        </header>
        <Text as="p" size="2" color="gray">{say(isPersonal ? 'connection.personal' : 'connection.shared')} · {say('connection.tools', { count: view.tools })}</Text>
        {'reason' in view && <Notice tone="wait">{view.state === 'needs_attention' ? say('connection.again') : view.reason}</Notice>}
        {view.dropped.length > 0 && <Text as="p" size="2" color="gray">{say('connection.dropped')}: {view.dropped.join(', ')}</Text>}
        {view.missing.length > 0 && <Text as="p" size="2" color="gray">{say('connection.missing')}: {view.missing.join(', ')}</Text>}
        {isPersonal && (authenticated ? <Personal agent={agent} view={view} /> : <p>{say('connection.guest')}</p>)}
        {view.tools > 0 && <Tools agent={agent} server={view.server} />}
      </article>
    </Panel>
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
    <Facts>{(own?.tools ?? []).map((tool) => [
      <Code variant="ghost" key={tool.tool}>{tool.tool}</Code>,
      <span key={tool.tool}>{tool.description}{tool.needs_approval_by?.length ? <> <em>{say('connection.approval', { approvers: tool.needs_approval_by.join(', ') })}</em></> : null}{tool.needs_confirmation && <> <em>{say('connection.confirmation')}</em></>}</span>,
    ])}</Facts>
  );
}

/** What a server offers depends on what was entered for it. */
const changed = (agent: string) => Promise.all([
  invalidate('/v1/agents/{agent}/connections', { path: { agent } }), invalidate('/v1/agents/{agent}/tools', { path: { agent } }),
]);

/** Enter, replace, test, remove. */
function Personal({ agent, view }: { agent: string; view: View }) {
  const { say, nameOf } = useTexts();
  const [isOpen, setIsOpen] = useState(false);
  const [tested, setTested] = useState<Schemas['Tested']>();
  const [isAwaited, setIsAwaited] = useState(false);
  const { isBusy, error, run } = useAction();
  const path = { agent, server: view.server };
  const isEntered = view.state !== 'not_configured';
  // The person is at the server's page, in another tab, which cannot tell this one.
  const isWaiting = isAwaited && view.state !== 'configured' && view.state !== 'saved';
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
      <Flex gap="2" wrap="wrap">
        <Button type="button" variant={isEntered ? 'surface' : 'solid'} color={isEntered ? 'gray' : 'cyan'} onClick={() => { setTested(undefined); setIsOpen(true); }}>{say(isEntered ? 'connection.replace' : 'connection.connect')}</Button>
        {isEntered && <PlainButton disabled={isBusy} onClick={() => void test()}>{say('connection.test')}</PlainButton>}
        {isEntered && <ConfirmButton label={say('remove')} question={say('connection.remove')} disabled={isBusy} onConfirm={() => void remove()} />}
      </Flex>
      {isWaiting && <Notice tone="plain" role="status">{say('connection.awaited')}</Notice>}
      {tested && <Notice tone={tested.ok ? 'good' : tested.reason ? 'bad' : 'wait'} role="status">{tested.reason ? nameOf('refused', tested.reason) : say(tested.ok ? 'tested.ok' : 'tested.unproven')}</Notice>}
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
    <form className="fields" onSubmit={(event) => { event.preventDefault(); void save().then((done) => done && onEnd(true)); }}>
      {server.data.sign_in && <Flex><Button type="button" disabled={isBusy} onClick={signIn}>{say('connection.signIn', { server: path.server })}</Button></Flex>}
      {server.data.sign_in && hasFields && <Text as="p" size="2" color="gray">{say('connection.orEnter')}</Text>}
      {server.data.fields.map((field, at) => (
        <EntryField
          key={field.name} autoFocus={at === 0} value={values[field.name] ?? ''}
          entry={{ name: field.name, kind: field.type, label: field.label, isRequired: field.required, options: field.options ?? [] }}
          onChange={(value) => setValues((old) => ({ ...old, [field.name]: value }))}
        />
      ))}
      {hasFields && <Text as="p" size="2" color="gray">{say('connection.sealed')}</Text>}
      <Failure error={error} />
      <Flex gap="2" wrap="wrap">
        {hasFields && <Button type="submit" variant={server.data.sign_in ? 'surface' : 'solid'} disabled={isBusy}>{say(isBusy ? 'connection.testing' : 'save')}</Button>}
        <PlainButton onClick={() => onEnd(false)}>{say('cancel')}</PlainButton>
      </Flex>
    </form>
  );
}
