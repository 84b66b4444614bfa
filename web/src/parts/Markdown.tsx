import { type ComponentType, lazy, Suspense } from 'react';

/** Asked for at once, beside the first requests: the page is shown before it can read Markdown. */
const loaded: Promise<{ default: ComponentType<{ text: string }> }> = import('./MarkdownText').catch(() => ({ default: AsWritten }));
const MarkdownText = lazy(() => loaded);

/** Markdown of a model or a server. Until it can be laid out, it is shown as it was written. */
export function Markdown({ text }: { text: string }) {
  return <Suspense fallback={<AsWritten text={text} />}><MarkdownText text={text} /></Suspense>;
}

function AsWritten({ text }: { text: string }) {
  return <div className="markdown"><p className="said">{text}</p></div>;
}
