import { isValidElement, type ReactNode, useRef } from 'react';
import { useTexts } from '../texts/texts';
import { CopyButton } from './CopyButton';

/** Code in a text, with its language and a button that copies it. */
export function CodeBlock({ children }: { children?: ReactNode }) {
  const { say } = useTexts();
  const code = useRef<HTMLPreElement>(null);
  const language = isValidElement<{ className?: string }>(children) ? /language-(\S+)/.exec(children.props.className ?? '')?.[1] : undefined;
  return (
    <figure className="code-block">
      <figcaption><span>{language ?? say('code')}</span><CopyButton text={() => code.current?.textContent ?? ''} /></figcaption>
      <pre ref={code} tabIndex={0}>{children}</pre>
    </figure>
  );
}
