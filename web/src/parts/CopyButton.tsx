import { IconButton } from '@radix-ui/themes';
import { Check, Copy } from 'lucide-react';
import { useState } from 'react';
import { useTexts } from '../texts/texts';

/** Copies a text, which is asked for when the button is pressed. */
export function CopyButton({ text }: { text: () => string }) {
  const { say } = useTexts();
  const [isCopied, setIsCopied] = useState(false);
  const copy = () => void navigator.clipboard.writeText(text()).then(() => setIsCopied(true), () => {});
  return (
    <IconButton type="button" variant="ghost" color="gray" aria-label={say(isCopied ? 'copied' : 'copy')} title={say('copy')} onClick={copy}>
      {isCopied ? <Check size={16} /> : <Copy size={16} />}
    </IconButton>
  );
}
