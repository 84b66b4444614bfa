import { AttachmentPrimitive, ComposerPrimitive, useAui, useAuiState } from '@assistant-ui/react';
import { Paperclip, Square, X } from 'lucide-react';
import { useEffect } from 'react';
import { Failure } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { AttachmentView } from './AttachmentView';
import { keepDraft, readDraft } from './drafts';
import { MessageField, SendButton } from './MessageField';
import { useSuggestions } from './useSuggestions';

/** Where one types. What did not arrive stays here, also over a reload. */
export function Composer({ id, agent, isUploading, errors }: {
  id: string;
  /** Its skills and prompts are suggested as commands. */
  agent: string | undefined;
  isUploading: boolean;
  errors: (Error | undefined)[];
}) {
  const { say } = useTexts();
  const aui = useAui();
  const text = useAuiState((state) => state.composer.text);
  const isRunning = useAuiState((state) => state.thread.isRunning);
  const isEmpty = useAuiState((state) => state.composer.isEmpty);
  useEffect(() => aui.composer.setText(readDraft(id)), [aui, id]);
  const suggestions = useSuggestions(agent, text, (taken) => {
    keepDraft(id, taken);
    aui.composer.setText(taken);
  });
  return (
    <ComposerPrimitive.AttachmentDropzone asChild>
      <ComposerPrimitive.Root className="composer">
        {errors.map((error, at) => <Failure key={at} error={error} />)}
        <ul className="attachments"><ComposerPrimitive.Attachments>{() => <ChosenFile conversation={id} />}</ComposerPrimitive.Attachments></ul>
        {suggestions.list}
        <div className="box line">
          <ComposerPrimitive.AddAttachment multiple className="quiet icon" aria-label={say('attachment.add')} title={say('attachment.add')} disabled={isUploading}><Paperclip size={18} /></ComposerPrimitive.AddAttachment>
          <MessageField
            label={say('composer.label')} cancelOnEscape={!suggestions.list} {...suggestions.field}
            onChange={(event) => keepDraft(id, event.target.value)} onKeyDown={suggestions.onKey}
          />
          {isRunning && <ComposerPrimitive.Cancel className="quiet"><Square size={14} fill="currentColor" /> {say('stop')}</ComposerPrimitive.Cancel>}
          {/* A message that is sent during an answer gets its own answer afterwards. */}
          {(!isRunning || !isEmpty) && <SendButton />}
        </div>
        <small>{say('composer.help')}</small>
      </ComposerPrimitive.Root>
    </ComposerPrimitive.AttachmentDropzone>
  );
}

/** A file that goes with the next message. */
function ChosenFile({ conversation }: { conversation: string }) {
  const { say } = useTexts();
  const { id, name, contentType = '' } = useAuiState((state) => state.attachment);
  return (
    <li>
      <AttachmentView conversation={conversation} attachment={{ id, name, media_type: contentType }} />
      <AttachmentPrimitive.Remove className="quiet icon" aria-label={say('attachment.remove', { name })}><X size={16} /></AttachmentPrimitive.Remove>
    </li>
  );
}
