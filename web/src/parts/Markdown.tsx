/** Text of a model or a server. HTML in it is text; a picture is a link, so that nothing is loaded from elsewhere. */
import { lexer, type MarkedToken, type Token, type Tokens } from 'marked';
import { createElement, Fragment, memo, type ReactNode } from 'react';
import { CodeBlock } from './CodeBlock';

export const Markdown = memo(function Markdown({ text }: { text: string }) {
  return <div className="markdown">{layOut(text)}</div>;
});

/** What cannot be laid out, such as a thousand quotes within each other, is shown as it was written. */
function layOut(text: string): ReactNode {
  try {
    return showAll(lexer(text));
  } catch {
    return <p className="said">{text}</p>;
  }
}

const showAll = (tokens: Token[] = []) => tokens.map((token, at) => <Fragment key={at}>{show(token as MarkedToken)}</Fragment>);

function show(token: MarkedToken): ReactNode {
  switch (token.type) {
    case 'heading':
      return createElement(`h${token.depth}`, null, showAll(token.tokens));
    case 'paragraph':
      return <p>{showAll(token.tokens)}</p>;
    case 'blockquote':
      return <blockquote>{showAll(token.tokens)}</blockquote>;
    case 'list':
      return createElement(token.ordered ? 'ol' : 'ul', token.ordered ? { start: token.start } : null, showAll(token.items));
    case 'list_item':
      return <li>{showAll(token.tokens)}</li>;
    case 'checkbox':
      return token.checked ? '☑ ' : '☐ ';
    case 'table':
      return <Table {...token} />;
    case 'code':
      return <CodeBlock language={token.lang?.split(/\s/, 1)[0]}>{token.text}</CodeBlock>;
    case 'hr':
      return <hr />;
    case 'html':
      return token.text;
    case 'space':
    case 'def':
      return null;
    default:
      return showInline(token);
  }
}

function showInline(token: MarkedToken): ReactNode {
  switch (token.type) {
    case 'text':
      return token.tokens ? showAll(token.tokens) : decode(token.text);
    case 'strong':
      return <strong>{showAll(token.tokens)}</strong>;
    case 'em':
      return <em>{showAll(token.tokens)}</em>;
    case 'del':
      return <del>{showAll(token.tokens)}</del>;
    case 'codespan':
      return <code>{token.text}</code>;
    case 'br':
      return <br />;
    case 'link':
      return <Elsewhere to={token.href}>{token.tokens.map((inner, at) => <Fragment key={at}>{inner.type === 'image' ? decode(inner.text as string) : show(inner as MarkedToken)}</Fragment>)}</Elsewhere>;
    case 'image':
      return <Elsewhere to={token.href}>{decode(token.text) || token.href}</Elsewhere>;
    default:
      return 'text' in token ? token.text : token.raw;
  }
}

function Table({ header, rows }: Tokens.Table) {
  const row = (cells: Tokens.TableCell[], Cell: 'th' | 'td') => (
    <tr>{cells.map(({ tokens, align }, at) => <Cell key={at} style={align ? { textAlign: align } : undefined}>{showAll(tokens)}</Cell>)}</tr>
  );
  return (
    <div className="scrolls" tabIndex={0} role="group">
      <table><thead>{row(header, 'th')}</thead><tbody>{rows.map((cells, at) => <Fragment key={at}>{row(cells, 'td')}</Fragment>)}</tbody></table>
    </div>
  );
}

const PROTOCOLS = ['http:', 'https:', 'mailto:'];

/** A link out of the page, where its address is one that leads to a page or a person. */
function Elsewhere({ to, children }: { to: string; children: ReactNode }) {
  const address = decode(to);
  if (!URL.canParse(address, window.location.href) || !PROTOCOLS.includes(new URL(address, window.location.href).protocol)) return <span>{children}</span>;
  return <a href={address} target="_blank" rel="noopener noreferrer nofollow">{children}</a>;
}

const ENTITY = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi;

/** `&amp;` as `&`. */
const decode = (text: string) => text.replace(ENTITY, (entity) => new DOMParser().parseFromString(entity, 'text/html').documentElement.textContent);
