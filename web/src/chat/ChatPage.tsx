import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { ConfirmButton, Empty, Failure, Loading } from '../parts/parts';
import { type Loaded, useAction, useLoad } from '../parts/useLoad';
import { go, href } from '../router';
import { useTexts } from '../texts/texts';
import { ThreadView } from './ThreadView';

export function ChatPage({ id }: { id: string }) {
  const { say } = useTexts();
  const agents = useLoad('agents', () => read(api.GET('/v1/agents')));
  const conversations = useLoad('conversations', () => read(api.GET('/v1/conversations', { params: { query: { limit: 50 } } })));
  const [isListOpen, setIsListOpen] = useState(false);
  const close = () => setIsListOpen(false);
  const current = conversations.data?.items.find((item) => item.id === id);
  return (
    <div className="chat">
      <nav className={`conversations${isListOpen ? ' open' : ''}`} aria-label={say('chat.conversations')}>
        <div className="buttons"><a className="button primary" href={href('chat')} onClick={close}>{say('chat.new')}</a></div>
        <ConversationList id={id} loaded={conversations} onOpen={close} />
      </nav>
      <main className="conversation">
        <div className="bar">
          <button type="button" className="quiet only-narrow" aria-expanded={isListOpen} onClick={() => setIsListOpen(!isListOpen)}>{say('chat.conversations')}</button>
          <h1>{id ? current?.title || say('chat.untitled') : say('chat.start')}</h1>
          {id && <DeleteConversation id={id} onDeleted={conversations.reload} />}
        </div>
        {id ? <ThreadView key={id} id={id} onSaid={conversations.reload} /> : <Agents agents={agents} onCreated={conversations.reload} />}
      </main>
    </div>
  );
}

function ConversationList({ id, loaded, onOpen }: {
  id: string;
  loaded: Loaded<Schemas['ConversationPage']>;
  onOpen: () => void;
}) {
  const { say } = useTexts();
  const more = useAction();
  if (loaded.error && !loaded.data) return <Failure error={loaded.error} retry={loaded.reload} />;
  if (!loaded.data) return <Loading />;
  const { items, next } = loaded.data;
  if (items.length === 0) return <Empty>{say('chat.none')}</Empty>;
  const loadMore = () => more.run(async () => {
    const page = await read(api.GET('/v1/conversations', { params: { query: { limit: 50, cursor: next ?? '' } } }));
    loaded.setData((old) => ({ ...page, items: [...(old?.items ?? []), ...page.items] }));
  });
  return (
    <>
      <ul>
        {items.map((item) => (
          <li key={item.id}>
            <a href={href('chat', item.id)} aria-current={item.id === id ? 'page' : undefined} onClick={onOpen}>
              <span>{item.title || say('chat.untitled')}</span> <span className="muted">{item.agent}</span>
            </a>
          </li>
        ))}
      </ul>
      {next && <button type="button" className="quiet" disabled={more.isBusy} onClick={() => void loadMore()}>{say('more')}</button>}
    </>
  );
}

function DeleteConversation({ id, onDeleted }: { id: string; onDeleted: () => void }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/conversations/{id}', { params: { path: { id } } }));
    onDeleted();
    go('chat');
  });
  return (
    <>
      <ConfirmButton key={id} label={say('delete')} question={say('chat.delete')} disabled={isBusy} onConfirm={() => void remove()} />
      <Failure error={error} />
    </>
  );
}

/** Whom one can talk to. */
function Agents({ agents, onCreated }: { agents: Loaded<{ items: Schemas['AgentView'][] }>; onCreated: () => void }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  if (agents.error) return <Failure error={agents.error} retry={agents.reload} />;
  if (!agents.data) return <Loading />;
  const start = (agent: string) => run(async () => {
    const { id } = await read(api.POST('/v1/conversations', { body: { agent } }));
    onCreated();
    go('chat', id);
  });
  return (
    <div className="thread">
      <div className="column">
        {agents.data.items.length === 0 && <Empty>{say('chat.agents.none')}</Empty>}
        <ul className="cards">
          {agents.data.items.map((agent) => (
            <li key={agent.id} className="card">
              <h2>{agent.display_name}</h2>
              <p>{agent.description}</p>
              <div className="buttons">
                <button type="button" className="primary" disabled={isBusy} onClick={() => void start(agent.id)}>{say('chat.talk', { agent: agent.display_name })}</button>
                <a href={href('connections', agent.id)}>{say('nav.connections')}</a>
              </div>
            </li>
          ))}
        </ul>
        <Failure error={error} />
      </div>
    </div>
  );
}
