import { ComposerPrimitive, type EnrichedPartState, MessagePrimitive, useAuiState } from '@assistant-ui/react';
import { Wrench } from 'lucide-react';
import { useState } from 'react';
import { State } from '../approvals/ApprovalCard';
import { Markdown } from '../parts/Markdown';
import { withoutMark } from '../parts/Outcomes';
import { TextOrValues } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { Actions } from './Actions';
import { AttachmentView } from './AttachmentView';
import { MAX_LENGTH } from './MessageField';
import type { CallView, Origin } from './messages';
import type { Part } from './thread';
import { ToolCard } from './ToolCard';

/** One message of the thread, or the form in which it is edited. */
export function MessageView() {
  const { say } = useTexts();
  const { message, isNewestAnswer = false } = useAuiState((state) => state.message.metadata.custom as Origin);
  const isEditing = useAuiState((state) => state.message.composer.isEditing);
  const [isNear, setIsNear] = useState(false);
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
      <ComposerPrimitive.Input asChild autoFocus submitMode="ctrlEnter"><textarea aria-label={say('message.edit')} rows={2} maxLength={MAX_LENGTH} /></ComposerPrimitive.Input>
      <p className="muted">{say('message.edit.help')}</p>
      <div className="buttons">
        <ComposerPrimitive.Send className="primary">{say('send')}</ComposerPrimitive.Send>
        <ComposerPrimitive.Cancel className="quiet">{say('cancel')}</ComposerPrimitive.Cancel>
      </div>
    </ComposerPrimitive.Root>
  );
}

function showPart({ part }: { part: EnrichedPartState }) {
  switch (part.type) {
    case 'text':
      return <Text text={part.text} />;
    case 'tool-call':
      return <ToolCard {...(part.artifact as CallView)} />;
    case 'data':
      return <OwnPart part={part.data as Part} />;
    default:
      return <></>;
  }
}

function Text({ text }: { text: string }) {
  const isOfUser = useAuiState((state) => state.message.role === 'user');
  return isOfUser ? <p className="said">{text}</p> : <Markdown text={text} />;
}

/** A part that only this program knows. */
function OwnPart({ part }: { part: Part }) {
  const { say, nameOf } = useTexts();
  const conversation = useAuiState((state) => (state.message.metadata.custom as Origin).message?.conversation_id ?? '');
  switch (part.type) {
    case 'notice':
      return <p className="notice">{part.text}</p>;
    case 'choices':
    case 'prompt':
      return <p className="said">{part.text}</p>;
    case 'approval':
      return (
        <details className="notice">
          <summary><span className="grow">{withoutMark(part.text)}</span> <State state={part.state} /></summary>
          {part.reason && <p>{say('approval.reason')}: <q>{part.reason}</q></p>}
          {part.result && <><h4>{say('result')}</h4><TextOrValues text={part.result} /></>}
        </details>
      );
    case 'call_outcome':
      return (
        <details className="notice">
          <summary><Wrench size={16} /><span className="grow"><b>{part.tool}</b> · {part.server}</span> <span className={`state ${part.status}`}>{say(`call.${part.status}`)}</span></summary>
          <TextOrValues text={part.text} />
        </details>
      );
    case 'server_prompt':
      return <details className="notice"><summary>{say('server.prompt', { prompt: part.prompt, server: part.server })}</summary><pre className="plain">{part.text}</pre></details>;
    case 'agent_callback':
      return <details className="notice"><summary>{say('callback', { agent: part.agent })} {nameOf('call', part.status)}</summary><Markdown text={part.text} /></details>;
    case 'attachment':
      return <AttachmentView conversation={conversation} attachment={part} />;
    default:
      return <></>;
  }
}
