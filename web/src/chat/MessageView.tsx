import { Wrench } from 'lucide-react';
import { memo, useState } from 'react';
import { State } from '../approvals/ApprovalCard';
import { Markdown } from '../parts/Markdown';
import { withoutMark } from '../parts/Outcomes';
import { TextOrValues } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { Actions, type Changes, textOf } from './Actions';
import { AttachmentView } from './AttachmentView';
import type { Versions } from './branches';
import { EditMessage } from './EditMessage';
import type { Message, Part } from './thread';
import { type Result, ToolCard } from './ToolCard';

interface Around {
  results: Map<string, Result>;
  /** Requests that stand in a card of their call already. */
  shownApprovals: Set<string>;
  progress: Record<string, string>;
  /** By the id of a message: its versions. */
  versions: Map<string, Versions>;
  /** The newest answer, and the message of the user that it answers. */
  newest: { answer: string; asked: Message } | undefined;
  changes: Changes;
}

/** One message. Results stand in the cards of their calls. */
export const MessageView = memo(function MessageView({ message, around }: { message: Message; around: Around }) {
  const { say } = useTexts();
  const [isEditing, setIsEditing] = useState(false);
  const [isNear, setIsNear] = useState(false);
  if (message.role === 'tool') return null;
  const isNewest = around.newest?.answer === message.id;
  const parts = message.parts.filter((part) => isShown(part, around));
  if (parts.length === 0) return null;
  if (isEditing)
    return <EditMessage text={textOf(message)} onEnd={(text) => { setIsEditing(false); if (text) around.changes.onReplace(message, text); }} />;
  return (
    <article
      className={`message ${message.role}${isNewest ? ' newest-answer' : ''}`} aria-label={say(`role.${message.role}`)}
      onPointerEnter={() => setIsNear(true)} onFocus={() => setIsNear(true)}
    >
      <div className={message.role === 'user' ? 'bubble' : 'parts'}>
        {parts.map((part, at) => <PartView key={at} part={part} message={message} around={around} />)}
      </div>
      <Actions
        message={message} isNear={isNear || isNewest} versions={around.versions.get(message.id)} changes={around.changes} onEdit={() => setIsEditing(true)}
        asked={isNewest ? around.newest?.asked : undefined}
      />
    </article>
  );
});

/** A call shows that its request waits; the outcome is told where it happens, too. */
function isShown(part: Part, { shownApprovals }: Around): boolean {
  if (part.type === 'approval') return part.state !== 'pending' || !shownApprovals.has(part.id);
  return part.type !== 'tool_result';
}

function PartView({ part, message, around }: { part: Part; message: Message; around: Around }) {
  const { say, nameOf } = useTexts();
  switch (part.type) {
    case 'text':
      return message.role === 'user' ? <p className="said">{part.text}</p> : <Markdown text={part.text} />;
    case 'tool_call':
      return <ToolCard call={part} at={message.created_at} found={around.results.get(part.call_id)} progress={around.progress[part.call_id]} />;
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
      return <AttachmentView conversation={message.conversation_id} attachment={part} />;
    case 'tool_result':
      return null;
  }
}

export type { Around };
