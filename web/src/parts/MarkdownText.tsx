/** Text of a model or a server. HTML in it is text; a picture is a link, so that nothing is loaded from elsewhere. */
import { memo } from 'react';
import ReactMarkdown, { type Components } from 'react-markdown';
import remarkGfm from 'remark-gfm';
import { CodeBlock } from './CodeBlock';

const PLUGINS = [remarkGfm];
const ELSEWHERE = { target: '_blank', rel: 'noopener noreferrer nofollow' };

const COMPONENTS: Components = {
  a: ({ href, children }) => (href ? <a href={href} {...ELSEWHERE}>{children}</a> : <span>{children}</span>),
  img: ({ src, alt }) => (typeof src === 'string' && src ? <a href={src} {...ELSEWHERE}>{alt || src}</a> : <span>{alt}</span>),
  table: ({ children }) => <div className="scrolls" tabIndex={0} role="group"><table>{children}</table></div>,
  pre: ({ children }) => <CodeBlock>{children}</CodeBlock>,
};

export default memo(function MarkdownText({ text }: { text: string }) {
  return (
    <div className="markdown">
      <ReactMarkdown remarkPlugins={PLUGINS} components={COMPONENTS}>{text}</ReactMarkdown>
    </div>
  );
});
