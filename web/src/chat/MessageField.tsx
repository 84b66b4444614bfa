import { ComposerPrimitive } from '@assistant-ui/react';
import { IconButton } from '@radix-ui/themes';
import { ArrowUp } from 'lucide-react';
import type { ComponentProps } from 'react';
import { useTexts } from '../texts/texts';

export const MAX_LENGTH = 32_768;

/** The field for a message. Enter sends it, and a file that is pasted goes with it. */
export function MessageField({ label, cancelOnEscape = true, ...field }: ComponentProps<'textarea'> & { label: string; cancelOnEscape?: boolean }) {
  const { say } = useTexts();
  return (
    <ComposerPrimitive.Input asChild autoFocus cancelOnEscape={cancelOnEscape}>
      <textarea className="rt-reset" rows={1} maxLength={MAX_LENGTH} aria-label={label} placeholder={say('composer.hint')} {...field} />
    </ComposerPrimitive.Input>
  );
}

export function SendButton() {
  const { say } = useTexts();
  return <ComposerPrimitive.Send asChild><IconButton type="submit" radius="full" aria-label={say('send')}><ArrowUp size={18} /></IconButton></ComposerPrimitive.Send>;
}
