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

/** Two texts beside one another: what is the same stands on the same line. */
export function SideBySide({ labels, before, after }: { labels: [string, string]; before: string; after: string }) {
  const rows: [string | null, string | null, boolean][] = [];
  let removed: string[] = [];
  const flush = (added: string[]) => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1) rows.push([removed[at] ?? null, added[at] ?? null, true]);
    removed = [];
  };
  for (const part of diffLines(before, after)) {
    const lines = part.value.replace(/\n$/, '').split('\n');
    if (part.removed) {
      removed = lines;
    } else if (part.added) {
      flush(lines);
    } else {
      flush([]);
      lines.forEach((line) => rows.push([line, line, false]));
    }
  }
  flush([]);
  return (
    <div className="beside-one-another" tabIndex={0} role="group" aria-label={labels.join(' / ')}>
      {labels.map((label) => <strong key={label}>{label}</strong>)}
      {rows.map(([old, now, isOther], at) => {
        const [Old, New] = isOther ? (['del', 'ins'] as const) : (['span', 'span'] as const);
        return [
          old === null ? <span key={`${at} before`} /> : <Old key={`${at} before`}><bdi>{old}</bdi></Old>,
          now === null ? <span key={`${at} after`} /> : <New key={`${at} after`}><bdi>{now}</bdi></New>,
        ];
      })}
    </div>
  );
}
