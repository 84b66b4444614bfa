import { diffLines } from 'diff';

/** Two texts line by line: what the second adds, and what it lacks. */
export function Difference({ before, after }: { before: string; after: string }) {
  const lines = diffLines(before, after).flatMap(({ value, added, removed }) =>
    value.replace(/\n$/, '').split('\n').map((line) => ({ line, added, removed })));
  return (
    <div className="difference" tabIndex={0} role="group">
      {lines.map(({ line, added, removed }, at) => {
        if (added) return <ins key={at}>+ {line}</ins>;
        return removed ? <del key={at}>- {line}</del> : <span key={at}>  {line}</span>;
      })}
    </div>
  );
}
