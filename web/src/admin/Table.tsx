import { Table as Radix } from '@radix-ui/themes';
import type { UseInfiniteQueryResult } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { Empty, More, Pending } from '../parts/parts';
import { type TextKey, useTexts } from '../texts/texts';

/** The pages of a list, and words when it is empty. */
export function Paged<T>({ query, empty = 'admin.none', children }: {
  query: UseInfiniteQueryResult<T[]>;
  empty?: TextKey;
  children: (items: T[]) => ReactNode;
}) {
  const { say } = useTexts();
  if (!query.data) return <Pending query={query} />;
  return (
    <>
      {query.data.length === 0 ? <Empty>{say(empty)}</Empty> : children(query.data)}
      <More query={query} />
    </>
  );
}

/** The head of a column of numbers stands where they do. */
export const NumberHead = ({ children }: { children: ReactNode }) => <Radix.ColumnHeaderCell justify="end">{children}</Radix.ColumnHeaderCell>;
export const Row = Radix.Row;
export const Cell = Radix.Cell;
export const RowHead = Radix.RowHeaderCell;
export function NumberCell({ children }: { children: ReactNode }) {
  const { language } = useTexts();
  return <Radix.Cell justify="end" className="number">{typeof children === 'number' ? children.toLocaleString(language) : children}</Radix.Cell>;
}

/** The table of Radix without its scroll area, whose styles our policy forbids. */
export function Table({ label, heads, className = '', children }: {
  label: string;
  /** The names of the columns, or heads. */
  heads: ReactNode[];
  className?: string;
  children: ReactNode;
}) {
  return (
    <div className={`rt-TableRoot rt-r-size-1 rt-variant-surface scrolls ${className}`} tabIndex={0} role="group" aria-label={label}>
      <table className="rt-TableRootTable">
        <Radix.Header>
          <Radix.Row>{heads.map((head, at) => (typeof head === 'string' ? <Radix.ColumnHeaderCell key={at}>{head}</Radix.ColumnHeaderCell> : head))}</Radix.Row>
        </Radix.Header>
        <Radix.Body>{children}</Radix.Body>
      </table>
    </div>
  );
}
