import { ActionBarPrimitive, BranchPickerPrimitive, useAuiState } from '@assistant-ui/react';
import { Check, ChevronLeft, ChevronRight, Copy, Pencil, RefreshCw } from 'lucide-react';
import { Moment } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { FeedbackButtons } from './FeedbackButtons';
import type { Message } from './thread';

/** What can be done with one message. */
export function Actions({ message, isNewestAnswer, isNear }: {
  message: Message;
  isNewestAnswer: boolean;
  /** The reader is at it. */
  isNear: boolean;
}) {
  const { say } = useTexts();
  const hasText = message.parts.some((part) => part.type === 'text' && part.text);
  const hasVersions = useAuiState((state) => state.message.branchCount > 1);
  const isCopied = useAuiState((state) => state.message.isCopied);
  const isRunning = useAuiState((state) => state.thread.isRunning);
  if (!hasText && !hasVersions) return null;
  return (
    <ActionBarPrimitive.Root className="actions">
      <BranchPickerPrimitive.Root hideWhenSingleBranch className="versions" role="group" aria-label={say('message.versions')}>
        <BranchPickerPrimitive.Previous className="quiet icon" aria-label={say('message.version.before')}><ChevronLeft size={16} /></BranchPickerPrimitive.Previous>
        <BranchPickerPrimitive.Number /> / <BranchPickerPrimitive.Count />
        <BranchPickerPrimitive.Next className="quiet icon" aria-label={say('message.version.after')}><ChevronRight size={16} /></BranchPickerPrimitive.Next>
      </BranchPickerPrimitive.Root>
      {hasText && (
        <ActionBarPrimitive.Copy className="quiet icon" aria-label={say(isCopied ? 'copied' : 'copy')} title={say('copy')}>
          {isCopied ? <Check size={16} /> : <Copy size={16} />}
        </ActionBarPrimitive.Copy>
      )}
      {message.role === 'user' && hasText && !isRunning && (
        <ActionBarPrimitive.Edit className="quiet icon" aria-label={say('message.edit')} title={say('message.edit')}><Pencil size={16} /></ActionBarPrimitive.Edit>
      )}
      {isNewestAnswer && !isRunning && (
        <ActionBarPrimitive.Reload className="quiet icon" aria-label={say('message.again')} title={say('message.again')}><RefreshCw size={16} /></ActionBarPrimitive.Reload>
      )}
      {message.role === 'assistant' && hasText && <FeedbackButtons message={message} isNear={isNear || isNewestAnswer} />}
      <small className="muted"><Moment at={message.created_at} /></small>
    </ActionBarPrimitive.Root>
  );
}
