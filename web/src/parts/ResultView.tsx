/** What a tool has answered: records as a table, other JSON laid out, and much of it folded. */
import { Text } from '@radix-ui/themes';
import type { ReactNode } from 'react';
import { writeJson } from '../api/digits';
import { useTexts } from '../texts/texts';
import { parsed, Values } from './parts';
import { nameTexts, valueText } from './values';

type Fields = Record<string, unknown>;

const MOST_COLUMNS = 8;
const MOST_ROWS = 50;
/** Characters of JSON that are laid out at once. */
const MUCH = 1200;

export function ResultView({ text }: { text: string }) {
  const value = parsed(text);
  return value === undefined ? <pre className="plain" tabIndex={0}>{text}</pre> : <Result value={value} />;
}

function Result({ value }: { value: unknown }): ReactNode {
  const rows = recordsOf(value);
  if (rows) return <Records rows={rows} />;
  if (!isObject(value) || Object.keys(value).length === 0) return <Folded value={value} />;
  const members = Object.entries(value);
  const lists = members.filter(([, item]) => recordsOf(item));
  if (lists.length === 0) return <Folded value={value} />;
  const others = Object.fromEntries(members.filter(([, item]) => !recordsOf(item)));
  const names = nameTexts(members.map(([name]) => name));
  return (
    <>
      {Object.keys(others).length > 0 && <Folded value={others} />}
      {lists.map(([name, item]) => (
        <figure key={name}>
          {members.length > 1 && <figcaption><Text size="1" color="gray"><bdi>{names[members.findIndex(([other]) => other === name)]}</bdi></Text></figcaption>}
          <Records rows={recordsOf(item) ?? []} />
        </figure>
      ))}
    </>
  );
}

/** JSON as a list of names and values; folded where it is long. */
function Folded({ value }: { value: unknown }) {
  const { say } = useTexts();
  const json = writeJson(value, 2) ?? '';
  if (json.length <= MUCH) return <Values value={value} />;
  return <details><summary>{say('result.json', { count: json.split('\n').length })}</summary><pre className="plain" tabIndex={0}>{json}</pre></details>;
}

/** One row for each record, and a column for each name. */
function Records({ rows }: { rows: Fields[] }) {
  const { say } = useTexts();
  const columns = columnsOf(rows);
  const names = nameTexts(columns);
  const isNumber = (name: string) => rows.every((row) => row[name] == null || /^-?[\d.,\s]+$/.test(textOf(row[name])));
  const numbers = columns.filter(isNumber);
  const shown = rows.slice(0, MOST_ROWS);
  return (
    <>
      <div className="scrolls records" tabIndex={0} role="group" aria-label={say('result.table')}>
        <table>
          <thead><tr>{columns.map((name, at) => <th key={name} className={numbers.includes(name) ? 'number' : undefined}><bdi>{names[at]}</bdi></th>)}</tr></thead>
          <tbody>{shown.map((row, at) => <tr key={at}>{columns.map((name) => <td key={name} className={numbers.includes(name) ? 'number' : undefined}><bdi className="value">{row[name] === undefined ? '' : textOf(row[name])}</bdi></td>)}</tr>)}</tbody>
        </table>
      </div>
      {rows.length > shown.length && <Folded value={rows} />}
    </>
  );
}

/** A decimal number that is a text reads well without quotation marks: nobody decides by this table. */
const textOf = (value: unknown) => (typeof value === 'string' && /^-?\d+(?:\.\d+)?$/.test(value) ? value : valueText(value));

const isObject = (value: unknown): value is Fields => typeof value === 'object' && value !== null && !Array.isArray(value);
const isFlat = (value: unknown): value is Fields => isObject(value) && Object.values(value).every((item) => typeof item !== 'object' || item === null);
const columnsOf = (rows: Fields[]) => [...new Set(rows.flatMap((row) => Object.keys(row)))];

/** A list of like things without anything nested. */
function recordsOf(value: unknown): Fields[] | undefined {
  if (!Array.isArray(value) || value.length === 0 || !value.every(isFlat)) return undefined;
  const columns = columnsOf(value);
  return columns.length > 0 && columns.length <= MOST_COLUMNS ? value : undefined;
}
