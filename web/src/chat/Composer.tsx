import { AttachmentPrimitive, ComposerPrimitive, useAui, useAuiState } from '@assistant-ui/react';
import { Button, Text } from '@radix-ui/themes';
import { Paperclip, Square, X } from 'lucide-react';
import { type MouseEvent, useEffect } from 'react';
import { IconAction } from '../parts/IconAction';
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
  errors: { send: Error | undefined; upload: Error | undefined };
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
        <Failure error={errors.send} retry={() => aui.composer.send()} />
        <Failure error={errors.upload} />
        <ul className="attachments"><ComposerPrimitive.Attachments>{() => <ChosenFile conversation={id} />}</ComposerPrimitive.Attachments></ul>
        {suggestions.list}
        <div className="box">
          <ComposerPrimitive.AddAttachment asChild disabled={isUploading}><IconAction label={say('attachment.add')}><Paperclip size={18} /></IconAction></ComposerPrimitive.AddAttachment>
          <MessageField
            label={say('composer.label')} cancelOnEscape={!suggestions.list} {...suggestions.field}
            onChange={(event) => keepDraft(id, event.target.value)} onKeyDown={suggestions.onKey}
          />
          {isRunning && <ComposerPrimitive.Cancel asChild><Button type="button" variant="soft" color="gray" radius="full" onClick={focusField}><Square size={12} fill="currentColor" /> {say('stop')}</Button></ComposerPrimitive.Cancel>}
          {/* A message that is sent during an answer gets its own answer afterwards. */}
          {(!isRunning || !isEmpty) && <SendButton />}
        </div>
        <Text as="p" className="help" size="1" color="gray" align="center">{say('composer.help')}</Text>
      </ComposerPrimitive.Root>
    </ComposerPrimitive.AttachmentDropzone>
  );
}

/** The button that was pressed goes; the person writes on. */
function focusField({ currentTarget }: MouseEvent<HTMLElement>) {
  currentTarget.closest('.box')?.querySelector('textarea')?.focus();
}

/** A file that goes with the next message. */
function ChosenFile({ conversation }: { conversation: string }) {
  const { say } = useTexts();
  const { id, name, contentType = '' } = useAuiState((state) => state.attachment);
  return (
    <li>
      <AttachmentView conversation={conversation} attachment={{ id, name, media_type: contentType }} />
      <AttachmentPrimitive.Remove asChild><IconAction label={say('attachment.remove', { name })} variant="surface" size="1"><X size={14} /></IconAction></AttachmentPrimitive.Remove>
    </li>
  );
}
