import type { UseInfiniteQueryResult } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { Empty, More, Pending } from '../parts/parts';
import { useTexts } from '../texts/texts';

/** The pages of a list, and words when it is empty. */
export function Paged<T>({ query, children }: { query: UseInfiniteQueryResult<T[]>; children: (items: T[]) => ReactNode }) {
  const { say } = useTexts();
  if (!query.data) return <Pending query={query} />;
  return (
    <>
      {query.data.length === 0 ? <Empty>{say('admin.none')}</Empty> : children(query.data)}
      <More query={query} />
    </>
  );
}

/** The head of a column of numbers stands where they do. */
export const NumberHead = ({ children }: { children: ReactNode }) => <span className="number">{children}</span>;

export function Table({ label, heads, className = '', children }: {
  label: string;
  heads: ReactNode[];
  className?: string;
  children: ReactNode;
}) {
  return (
    <div className={`scrolls ${className}`} tabIndex={0} role="group" aria-label={label}>
      <table>
        <thead><tr>{heads.map((head, at) => <th key={at} scope="col">{head}</th>)}</tr></thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
