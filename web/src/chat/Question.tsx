/** What the program or a server asks: buttons for a choice, a field for a value. It stands where one types. */
import { useState } from 'react';
import type { Schemas } from '../api/client';
import { EntryField } from '../parts/EntryField';
import { Failure } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import type { Part } from './thread';
import type { Said } from './useConversation';

type Say = (said: Said) => Promise<void>;

export function Question({ part, onSay }: { part: Extract<Part, { type: 'choices' | 'prompt' }>; onSay: Say }) {
  return part.type === 'choices' ? <Choices part={part} onSay={onSay} /> : <Prompt prompt={part} onSay={onSay} />;
}

function Choices({ part, onSay }: { part: Extract<Part, { type: 'choices' }>; onSay: Say }) {
  const { isBusy, error, run } = useAction();
  return (
    <div className="question" role="group" aria-label={part.text}>
      <div className="buttons">
        {part.choices.map((choice) => (
          <button key={choice.value} type="button" disabled={isBusy} onClick={() => void run(() => onSay({ text: choice.value }))}>{choice.label}</button>
        ))}
      </div>
      <Failure error={error} />
    </div>
  );
}

function Prompt({ prompt, onSay }: { prompt: Schemas['Prompt']; onSay: Say }) {
  const { say } = useTexts();
  const [value, setValue] = useState('');
  const { isBusy, error, run } = useAction();
  const answer = (text: string) => run(() => onSay({ answer: { field: prompt.field, value: text } }));
  const command = (text: string) => void run(() => onSay({ text }));
  const schema = prompt.asking?.schema as Record<string, unknown> | undefined;
  const label = [schema?.title, prompt.field].find((text) => typeof text === 'string') as string;
  const address = prompt.url && /^https?:/.test(prompt.url) ? prompt.url : undefined;
  // The page of a sign-in may show a code, which is said like a message.
  const isSignIn = address !== undefined && !prompt.asking;
  const submit = () => (isSignIn ? run(() => onSay({ text: value.trim() })) : answer(value));
  return (
    <form className="question" onSubmit={(event) => { event.preventDefault(); void submit().then((done) => done && setValue('')); }}>
      {prompt.asking && <p className="muted">{say('prompt.server', { server: prompt.asking.server, tool: prompt.asking.tool })}</p>}
      {address && <p><a className={isSignIn ? 'button primary' : ''} href={address} target="_blank" rel="noopener noreferrer nofollow">{isSignIn ? say('prompt.signIn') : address}</a></p>}
      {isSignIn && <EntryField value={value} onChange={setValue} entry={{ name: 'code', kind: 'text', label: say('prompt.code'), isRequired: true, options: [] }} />}
      {!address && (
        <EntryField
          autoFocus value={value} onChange={setValue}
          entry={{ name: prompt.field, kind: prompt.secret ? 'secret' : prompt.input, label, isRequired: true, options: prompt.options ?? [], schema }}
        />
      )}
      <div className="buttons">
        {(!address || isSignIn) && <button type="submit" className={isSignIn ? '' : 'primary'} disabled={isBusy || !value}>{say('send')}</button>}
        {prompt.asking && !address && <button type="button" disabled={isBusy} onClick={() => void answer('-')}>{say('prompt.skip')}</button>}
        {prompt.asking && <button type="button" disabled={isBusy} onClick={() => command('/decline')}>{say('prompt.decline')}</button>}
        <button type="button" className="quiet" disabled={isBusy} onClick={() => command('/cancel')}>{say('cancel')}</button>
      </div>
      <Failure error={error} />
    </form>
  );
}
