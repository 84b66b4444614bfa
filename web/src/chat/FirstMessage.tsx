import { type AssistantClient, AuiConfig, AuiProvider, ComposerPrimitive, ExternalThread, ThreadPrimitive, useAui } from '@assistant-ui/react';
import { Button } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useRef, useState } from 'react';
import type { Schemas } from '../api/client';
import { get } from '../api/queries';
import { PlainButton } from '../parts/PlainButton';
import { Choice } from '../parts/Field';
import { useTexts } from '../texts/texts';
import { MessageField, SendButton } from './MessageField';
import { textOf } from './messages';

/** The first message of a conversation that does not exist yet, with what the agent is good at to begin with. */
export function FirstMessage({ agents, isBusy, onStart }: {
  agents: Schemas['AgentView'][];
  isBusy: boolean;
  /** Says whether the conversation was begun. */
  onStart: (agent: string, text: string) => Promise<boolean>;
}) {
  const { say } = useTexts();
  const [chosen, setChosen] = useState('');
  const library = useRef<AssistantClient>(null);
  const agent = agents.find(({ id }) => id === chosen) ?? agents[0];
  if (!agent) return null;
  const start = async (text: string) => {
    if (!(await onStart(agent.id, text))) library.current?.composer.setText(text);
  };
  const config = AuiConfig({ thread: ExternalThread({ messages: [], isSendDisabled: isBusy, onNew: (message) => void start(textOf(message)) }) });
  return (
    <AuiProvider config={config} ref={library}>
      <ThreadPrimitive.ViewportProvider><ComposerPrimitive.Root className="composer">
        <div className="box">
          {agents.length > 1 && (
            <Choice aria-label={say('chat.agent')} value={agent.id} options={agents.map(({ id, display_name }) => [id, display_name] as const)} onChange={setChosen} />
          )}
          <MessageField label={say('chat.first', { agent: agent.display_name })} />
          <SendButton />
        </div>
        <Starters key={agent.id} agent={agent.id} onAsk={(words) => void start(words)} />
      </ComposerPrimitive.Root></ThreadPrimitive.ViewportProvider>
    </AuiProvider>
  );
}

const MOST = 4;

/** The agent's skills begin a message; the first of all asks what there is. */
function Starters({ agent, onAsk }: { agent: string; onAsk: (text: string) => void }) {
  const { say } = useTexts();
  const aui = useAui();
  const group = useRef<HTMLDivElement>(null);
  const skills = useQuery(get('/v1/agents/{agent}/skills', { path: { agent } }));
  const begin = (words: string) => {
    aui.composer.setText(words);
    group.current?.closest('form')?.querySelector('textarea')?.focus();
  };
  return (
    <div className="starters" role="group" aria-label={say('chat.or')} ref={group}>
      <PlainButton radius="full" onClick={() => onAsk('/tools')}>{say('chat.starter.tools')}</PlainButton>
      {skills.data?.items.slice(0, MOST).map(({ id, name, description }) => (
        <Button key={id} type="button" variant="surface" color="gray" radius="full" title={description} onClick={() => begin(`${name}: `)}>{name}</Button>
      ))}
    </div>
  );
}
