import { ComposerPrimitive, type EnrichedPartState, MessagePrimitive, useAuiState } from '@assistant-ui/react';
import { Button, Card, Flex, Heading, Text as Words, TextArea } from '@radix-ui/themes';
import { Wrench } from 'lucide-react';
import { type ReactNode, useDeferredValue, useState } from 'react';
import { State } from '../approvals/Outcome';
import { Markdown } from '../parts/Markdown';
import { withLocalTimes, withoutMark } from '../parts/Outcomes';
import { PlainButton } from '../parts/PlainButton';
import { Notice, StateBadge } from '../parts/parts';
import { ResultView } from '../parts/ResultView';
import { useTexts } from '../texts/texts';
import { Actions } from './Actions';
import { AttachmentView } from './AttachmentView';
import { MAX_LENGTH } from './MessageField';
import { CALLS, type CallView, type Origin } from './messages';
import type { Part } from './thread';
import { Calls } from './ToolCard';

/** One message of the thread, or the form in which it is edited. */
export function MessageView() {
  const { say } = useTexts();
  const { message, isNewestAnswer = false } = useAuiState((state) => state.message.metadata.custom as Origin);
  const isEditing = useAuiState((state) => state.message.composer.isEditing);
  const [isNear, setIsNear] = useState(false);
  // A long conversation is laid out in pieces, between which the browser can do something else.
  const isReady = useDeferredValue(true, false);
  if (!isReady) return <></>;
  if (isEditing) return <EditMessage />;
  const role = message?.role ?? 'assistant';
  return (
    <MessagePrimitive.Root asChild>
      <article
        className={`message ${role}${isNewestAnswer ? ' newest-answer' : ''}`} aria-label={say(`role.${role}`)} aria-busy={!message}
        onPointerEnter={() => setIsNear(true)} onFocus={() => setIsNear(true)}
      >
        <div className={role === 'user' ? 'bubble' : 'parts'}><MessagePrimitive.Parts>{showPart}</MessagePrimitive.Parts></div>
        {message && role !== 'system' && <Actions message={message} isNewestAnswer={isNewestAnswer} isNear={isNear} />}
      </article>
    </MessagePrimitive.Root>
  );
}

/** The text of a message of the user, to be said in another way. */
function EditMessage() {
  const { say } = useTexts();
  return (
    <ComposerPrimitive.Root className="edit">
      <ComposerPrimitive.Input asChild autoFocus submitMode="ctrlEnter"><TextArea aria-label={say('message.edit')} rows={2} maxLength={MAX_LENGTH} /></ComposerPrimitive.Input>
      <Words as="p" size="2" color="gray">{say('message.edit.help')}</Words>
      <Flex gap="2">
        <ComposerPrimitive.Send asChild><Button type="submit">{say('send')}</Button></ComposerPrimitive.Send>
        <ComposerPrimitive.Cancel asChild><PlainButton>{say('cancel')}</PlainButton></ComposerPrimitive.Cancel>
      </Flex>
    </ComposerPrimitive.Root>
  );
}

function showPart({ part }: { part: EnrichedPartState }) {
  switch (part.type) {
    case 'text':
      return <Text text={part.text} />;
    case 'data':
      return part.name === CALLS ? <Calls calls={part.data as CallView[]} /> : <OwnPart part={part.data as Part} />;
    default:
      return <></>;
  }
}

function Text({ text }: { text: string }) {
  const { language } = useTexts();
  const isOfUser = useAuiState((state) => state.message.role === 'user');
  const isOfProgram = useAuiState((state) => (state.message.metadata.custom as Origin).message?.role === 'system');
  return isOfUser ? <p className="said">{text}</p> : <Markdown text={isOfProgram ? withLocalTimes(text, language) : text} />;
}

/** A part that only this program knows. */
function OwnPart({ part }: { part: Part }) {
  const { say, nameOf, language } = useTexts();
  const conversation = useAuiState((state) => (state.message.metadata.custom as Origin).message?.conversation_id ?? '');
  switch (part.type) {
    // What a server says is its own, word for word: no picture or link of it is one here.
    case 'text':
      return <figure className="server-words"><figcaption><Words size="2" color="gray">{part.source?.server} · {part.source?.tool}</Words></figcaption><ResultView text={part.text} /></figure>;
    case 'notice':
      return <Notice tone="plain">{withLocalTimes(withoutMark(part.text), language)}</Notice>;
    case 'choices':
    case 'prompt':
      return <p className="said">{part.text}</p>;
    case 'approval':
      return (
        <Told title={<><span className="grow">{withLocalTimes(withoutMark(part.text), language)}</span> <State {...part} /></>}>
          {part.reason && <p>{say('approval.reason')}: <q>{part.reason}</q></p>}
          {part.result && <><Heading as="h4" size="1" color="gray">{say('result')}</Heading><ResultView text={part.result} /></>}
        </Told>
      );
    case 'call_outcome':
      return (
        <Told title={<><Wrench size={16} /><span className="grow"><b>{part.tool}</b> · {part.server}</span> <StateBadge state={part.status}>{say(`call.${part.status}`)}</StateBadge></>}>
          <ResultView text={part.text} />
        </Told>
      );
    case 'server_prompt':
      return <Told title={say('server.prompt', { prompt: part.prompt, server: part.server })}><pre className="plain">{part.text}</pre></Told>;
    case 'agent_callback':
      return <Told title={<>{say('callback', { agent: part.agent })} {nameOf('call', part.status)}</>}><Markdown text={part.text} /></Told>;
    case 'attachment':
      return <AttachmentView conversation={conversation} attachment={part} />;
    default:
      return <></>;
  }
}

/** What happened, folded: the rest is shown when it is opened. */
function Told({ title, children }: { title: ReactNode; children: ReactNode }) {
  return <Card asChild size="1"><details className="told"><summary>{title}</summary>{children}</details></Card>;
}
