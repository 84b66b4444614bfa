import { ActionBarPrimitive, BranchPickerPrimitive, useAuiState } from '@assistant-ui/react';
import { Text } from '@radix-ui/themes';
import { Check, ChevronLeft, ChevronRight, Copy, Pencil, RefreshCw } from 'lucide-react';
import { IconAction } from '../parts/IconAction';
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
        <BranchPickerPrimitive.Previous asChild><IconAction label={say('message.version.before')}><ChevronLeft size={16} /></IconAction></BranchPickerPrimitive.Previous>
        <BranchPickerPrimitive.Number /> / <BranchPickerPrimitive.Count />
        <BranchPickerPrimitive.Next asChild><IconAction label={say('message.version.after')}><ChevronRight size={16} /></IconAction></BranchPickerPrimitive.Next>
      </BranchPickerPrimitive.Root>
      {hasText && (
        <ActionBarPrimitive.Copy asChild>
          <IconAction label={say(isCopied ? 'copied' : 'copy')}>{isCopied ? <Check size={16} /> : <Copy size={16} />}</IconAction>
        </ActionBarPrimitive.Copy>
      )}
      {message.role === 'user' && hasText && !isRunning && (
        <ActionBarPrimitive.Edit asChild><IconAction label={say('message.edit')}><Pencil size={16} /></IconAction></ActionBarPrimitive.Edit>
      )}
      {isNewestAnswer && !isRunning && (
        <ActionBarPrimitive.Reload asChild><IconAction label={say('message.again')}><RefreshCw size={16} /></IconAction></ActionBarPrimitive.Reload>
      )}
      {message.role === 'assistant' && hasText && <FeedbackButtons message={message} isNear={isNear || isNewestAnswer} />}
      <Text size="1" color="gray" ml="1"><Moment at={message.created_at} /></Text>
    </ActionBarPrimitive.Root>
  );
}
