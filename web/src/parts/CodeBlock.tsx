import { useTexts } from '../texts/texts';
import { CopyButton } from './CopyButton';

/** Code in a text, with its language and a button that copies it. */
export function CodeBlock({ language, children }: { language: string | undefined; children: string }) {
  const { say } = useTexts();
  return (
    <figure className="code-block">
      <figcaption><span>{language || say('code')}</span><CopyButton text={() => children} /></figcaption>
      <pre tabIndex={0}><code>{children}</code></pre>
    </figure>
  );
}
