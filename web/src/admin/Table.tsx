import type { ReactNode } from 'react';
import { Empty, Failure, Loading } from '../parts/parts';
import { type Loaded, useAction } from '../parts/useLoad';
import { useTexts } from '../texts/texts';

export interface Page<T> {
  items: T[];
  next?: string | null;
}

/** A page of a list, what follows it, and words when it is empty. */
export function Paged<T>({ loaded, load, children }: {
  loaded: Loaded<Page<T>>;
  load: (next: string) => Promise<Page<T>>;
  children: (items: T[]) => ReactNode;
}) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  if (loaded.error) return <Failure error={loaded.error} retry={loaded.reload} />;
  if (!loaded.data) return <Loading />;
  const { items, next } = loaded.data;
  const more = () => run(async () => {
    const page = await load(next ?? '');
    loaded.setData((old) => ({ ...page, items: [...(old?.items ?? []), ...page.items] }));
  });
  return (
    <>
      {items.length === 0 ? <Empty>{say('admin.none')}</Empty> : children(items)}
      {next && <div><button type="button" disabled={isBusy} onClick={() => void more()}>{say('more')}</button></div>}
      <Failure error={error} />
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
