/** What the program or a server asks: buttons for a choice, a field for a value. It stands where one types. */
import { Button, Flex, Link, Text } from '@radix-ui/themes';
import { useState } from 'react';
import type { Schemas } from '../api/client';
import { EntryField } from '../parts/EntryField';
import { Failure } from '../parts/parts';
import { PlainButton } from '../parts/PlainButton';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import type { Part } from './thread';
import type { Said } from './useConversation';

const ELSEWHERE = { target: '_blank', rel: 'noopener noreferrer nofollow' };

type Say = (said: Said) => Promise<void>;

export function Question({ part, onSay }: { part: Extract<Part, { type: 'choices' | 'prompt' }>; onSay: Say }) {
  return part.type === 'choices' ? <Choices part={part} onSay={onSay} /> : <Prompt prompt={part} onSay={onSay} />;
}

function Choices({ part, onSay }: { part: Extract<Part, { type: 'choices' }>; onSay: Say }) {
  const { isBusy, error, run } = useAction();
  return (
    <div className="question" role="group" aria-label={part.text}>
      <Flex wrap="wrap" gap="2">
        {part.choices.map((choice) => (
          <Button key={choice.value} type="button" variant="surface" disabled={isBusy} onClick={() => void run(() => onSay({ text: choice.value }))}>{choice.label}</Button>
        ))}
      </Flex>
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
  const server = prompt.asking?.command ? undefined : prompt.asking;
  const address = prompt.url && /^https?:/.test(prompt.url) ? prompt.url : undefined;
  // The page of a sign-in may show a code, which is said like a message.
  const isSignIn = address !== undefined && !prompt.asking;
  const submit = () => (isSignIn ? run(() => onSay({ text: value.trim() })) : answer(value));
  return (
    <form className="question" onSubmit={(event) => { event.preventDefault(); void submit().then((done) => done && setValue('')); }}>
      {server && <Text as="p" size="2" color="gray">{say('prompt.server', { server: server.server, tool: server.tool })}</Text>}
      {address && <p>{isSignIn ? <Button asChild><a href={address} {...ELSEWHERE}>{say('prompt.signIn')}</a></Button> : <Link href={address} {...ELSEWHERE}>{address}</Link>}</p>}
      {isSignIn && <EntryField value={value} onChange={setValue} entry={{ name: 'code', kind: 'text', label: say('prompt.code'), isRequired: true, options: [] }} />}
      {!address && (
        <EntryField
          autoFocus value={value} onChange={setValue}
          entry={{ name: prompt.field, kind: prompt.secret ? 'secret' : prompt.input, label: prompt.label ?? prompt.field, isRequired: true, options: prompt.options ?? [], schema }}
        />
      )}
      <Flex wrap="wrap" gap="2">
        {(!address || isSignIn) && <Button type="submit" variant={isSignIn ? 'surface' : 'solid'} disabled={isBusy || !value}>{say('send')}</Button>}
        {server && !address && <PlainButton disabled={isBusy} onClick={() => void answer('-')}>{say('prompt.skip')}</PlainButton>}
        {server && <PlainButton disabled={isBusy} onClick={() => command('/decline')}>{say('prompt.decline')}</PlainButton>}
        <PlainButton disabled={isBusy} onClick={() => command('/cancel')}>{say('cancel')}</PlainButton>
      </Flex>
      <Failure error={error} />
    </form>
  );
}
