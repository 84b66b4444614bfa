import { useQuery } from '@tanstack/react-query';
import { ArrowUp } from 'lucide-react';
import { useRef, useState } from 'react';
import type { Schemas } from '../api/client';
import { get } from '../api/queries';
import { useTexts } from '../texts/texts';

/** The first message of a conversation that does not exist yet, with what the agent is good at to begin with. */
export function FirstMessage({ agents, isBusy, onStart }: {
  agents: Schemas['AgentView'][];
  isBusy: boolean;
  onStart: (agent: string, text: string) => void;
}) {
  const { say } = useTexts();
  const [chosen, setChosen] = useState('');
  const [text, setText] = useState('');
  const field = useRef<HTMLTextAreaElement>(null);
  const agent = agents.find(({ id }) => id === chosen) ?? agents[0];
  if (!agent) return null;
  const send = () => {
    if (text.trim() && !isBusy) onStart(agent.id, text.trim());
  };
  const begin = (words: string) => {
    setText(words);
    field.current?.focus();
  };
  return (
    <form className="composer" onSubmit={(event) => { event.preventDefault(); send(); }}>
      <div className="box line">
        {agents.length > 1 && (
          <select aria-label={say('chat.agent')} value={agent.id} onChange={(event) => setChosen(event.target.value)}>
            {agents.map(({ id, display_name }) => <option key={id} value={id}>{display_name}</option>)}
          </select>
        )}
        <textarea
          ref={field} rows={1} maxLength={32_768} value={text} aria-label={say('chat.first', { agent: agent.display_name })} placeholder={say('composer.hint')}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            send();
          }}
        />
        <button type="submit" className="primary icon" aria-label={say('send')} disabled={isBusy || !text.trim()}><ArrowUp size={18} /></button>
      </div>
      <Starters key={agent.id} agent={agent.id} onBegin={begin} onAsk={(words) => onStart(agent.id, words)} />
    </form>
  );
}

const MOST = 4;

/** The agent's skills begin a message; the first of all asks what there is. */
function Starters({ agent, onBegin, onAsk }: { agent: string; onBegin: (text: string) => void; onAsk: (text: string) => void }) {
  const { say } = useTexts();
  const skills = useQuery(get('/v1/agents/{agent}/skills', { path: { agent } }));
  return (
    <div className="starters" role="group" aria-label={say('chat.or')}>
      <button type="button" onClick={() => onAsk('/tools')}>{say('chat.starter.tools')}</button>
      {skills.data?.items.slice(0, MOST).map(({ id, name, description }) => (
        <button key={id} type="button" title={description} onClick={() => onBegin(`${name}: `)}>{name}</button>
      ))}
    </div>
  );
}
