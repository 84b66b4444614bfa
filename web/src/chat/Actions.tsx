import { ChevronLeft, ChevronRight, Pencil, RefreshCw } from 'lucide-react';
import { CopyButton } from '../parts/CopyButton';
import { Moment } from '../parts/parts';
import { useTexts } from '../texts/texts';
import type { Versions } from './branches';
import { FeedbackButtons } from './FeedbackButtons';
import type { Message } from './thread';

export interface Changes {
  /** Asks the message of the user again, with another text or with the same. */
  onReplace: (message: Message, text?: string) => void;
  onBranch: (branch: number) => void;
  /** Nothing is on its way that a change would cut off. */
  mayChange: boolean;
}

export const textOf = (message: Message) =>
  message.parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n\n');

/** What can be done with one message. */
export function Actions({ message, isNear, asked, versions, changes, onEdit }: {
  message: Message;
  /** The reader is at it. */
  isNear: boolean;
  /** The message of the user that an answer belongs to, where the answer is its last. */
  asked: Message | undefined;
  versions: Versions | undefined;
  changes: Changes;
  onEdit: () => void;
}) {
  const { say } = useTexts();
  const text = textOf(message);
  if (message.role === 'system' || (!text && !versions)) return null;
  return (
    <div className="actions">
      {versions && <VersionChoice versions={versions} changes={changes} />}
      {text && <CopyButton text={() => text} />}
      {message.role === 'user' && text && changes.mayChange && (
        <button type="button" className="quiet icon" aria-label={say('message.edit')} title={say('message.edit')} onClick={onEdit}><Pencil size={16} /></button>
      )}
      {asked && changes.mayChange && (
        <button type="button" className="quiet icon" aria-label={say('message.again')} title={say('message.again')} onClick={() => changes.onReplace(asked)}><RefreshCw size={16} /></button>
      )}
      {message.role === 'assistant' && text && <FeedbackButtons message={message} isNear={isNear} />}
      <small className="muted"><Moment at={message.created_at} /></small>
    </div>
  );
}

function VersionChoice({ versions: { branches, current }, changes }: { versions: Versions; changes: Changes }) {
  const { say } = useTexts();
  const step = (by: number) => {
    const branch = branches[current + by];
    return { disabled: branch === undefined || !changes.mayChange, onClick: () => branch !== undefined && changes.onBranch(branch) };
  };
  return (
    <span className="versions" role="group" aria-label={say('message.versions')}>
      <button type="button" className="quiet icon" aria-label={say('message.version.before')} {...step(-1)}><ChevronLeft size={16} /></button>
      {current + 1} / {branches.length}
      <button type="button" className="quiet icon" aria-label={say('message.version.after')} {...step(1)}><ChevronRight size={16} /></button>
    </span>
  );
}
