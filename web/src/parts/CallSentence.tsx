/**
 * A call in a sentence of ours: the words of the pack, or else the name of the tool, with arguments in their places. The
 * server's own words never stand in it, and no value can pass for a part of the sentence.
 */
import { Fragment } from 'react';
import { writeJson } from '../api/digits';
import { nameTexts, valueText } from './values';

export interface Called {
  tool: string;
  /** Of the pack: `Send {amount} to {recipient}`. */
  /** Of an approval, whose `summary` has the arguments in it already. */
  summary_template?: string | null | undefined;
  summary?: string | null | undefined;
  arguments: unknown;
  /** Decimal numbers as the reader writes them, by the names of their arguments. */
  amounts?: Record<string, string> | undefined;
}

interface Sentence {
  pieces: { text: string; isValue: boolean }[];
  /** The arguments that do not stand in the sentence, or not by their names. */
  rest: Record<string, unknown>;
}

/** What is longer stands below the sentence. */
const LONGEST = 48;
/** So many arguments follow the name of a tool that the pack has no words for. */
const FIRST = 3;

const DECIMAL = /^-?\d+(?:[.,]\d+)?$/;
const PLACE = /\{([^{}]+)\}/g;

const membersOf = (value: unknown): Record<string, unknown> => (typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {});

/** A value as it stands in a sentence: in quotation marks, unless it is one word. `undefined`: it stands in none. */
function wordOf(value: unknown): string | undefined {
  if (typeof value === 'object' || value === undefined) return undefined;
  const shown = valueText(value);
  if (shown.length > LONGEST || shown.includes('\n')) return undefined;
  const isText = writeJson(value)?.startsWith('"') ?? false;
  if (!isText || DECIMAL.test(String(value))) return isText ? String(value) : shown;
  return shown.startsWith('"') || (shown !== '' && !/\s/.test(shown)) ? shown : `“${shown}”`;
}

/** `send_money` as “Send money”. A name with other characters stays what it is. */
function titleOf(tool: string): string {
  if (!/^[A-Za-z][\w.:/-]*$/.test(tool)) return nameTexts([tool])[0] ?? '';
  const words = tool.replace(/([a-z\d])([A-Z])/g, '$1 $2').replace(/[_.:/-]+/g, ' ').trim();
  return words.charAt(0).toUpperCase() + words.slice(1).toLowerCase();
}

/** The words of the pack with the arguments in them. `undefined`: there are none, or an argument that they name is not there. */
function fill(summary: string, given: Record<string, unknown>, amounts: Record<string, string>): Sentence | undefined {
  const named = new Set<string>();
  const pieces: Sentence['pieces'] = [];
  let end = 0;
  for (const place of summary.matchAll(PLACE)) {
    const name = place[1] ?? '';
    const word = Object.hasOwn(given, name) ? wordOf(given[name]) : undefined;
    if (word === undefined) return undefined;
    const written = Object.hasOwn(amounts, name) ? amounts[name] : undefined;
    pieces.push({ text: summary.slice(end, place.index), isValue: false }, { text: written ?? word, isValue: true });
    // The exact text stands beside what the reader's language makes of it.
    if (written !== undefined) pieces.push({ text: ' (', isValue: false }, { text: word, isValue: true }, { text: ')', isValue: false });
    end = place.index + place[0].length;
    named.add(name);
  }
  pieces.push({ text: summary.slice(end), isValue: false });
  return { pieces, rest: Object.fromEntries(Object.entries(given).filter(([name]) => !named.has(name))) };
}

export function sentenceOf({ tool, summary, summary_template: template = summary, arguments: given, amounts = {} }: Called): Sentence {
  const members = membersOf(given);
  return (template ? fill(template, members, amounts) : undefined) ?? { pieces: [{ text: titleOf(tool), isValue: false }], rest: members };
}

/** The sentence, with the values set apart. Where the pack has no words, `hasFirst` lets the first arguments follow the tool's name. */
export function CallSentence({ hasFirst = false, ...called }: Called & { hasFirst?: boolean }) {
  const { pieces, rest } = sentenceOf(called);
  const isOfPack = pieces.length > 1;
  const words = hasFirst && !isOfPack ? Object.values(rest).map(wordOf).filter((word) => word !== undefined).slice(0, FIRST) : [];
  return (
    <>
      {pieces.map(({ text, isValue }, at) => (isValue ? <Value key={at}>{text}</Value> : <Fragment key={at}>{text}</Fragment>))}
      {words.map((word, at) => <Fragment key={at}>{at === 0 ? ': ' : ', '}<Value>{word}</Value></Fragment>)}
    </>
  );
}

const Value = ({ children }: { children: string }) => <bdi className="figure">{children}</bdi>;
