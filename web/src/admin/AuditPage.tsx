import { useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { getPages } from '../api/queries';
import { Moment } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { Paged, Table } from './Table';

const FILTERS = ['actor', 'action', 'server', 'tool'] as const;
const OUTCOMES = ['succeeded', 'failed', 'denied', 'outcome_unknown', 'cancelled'] as const;
const TIMES = ['since', 'until'] as const;

/** Times are entered as on the reader's clock. */
const valueOf = (name: string, value: string) => (TIMES.some((time) => time === name) ? new Date(value).toISOString() : value);

export function AuditPage() {
  const { say, nameOf } = useTexts();
  const [draft, setDraft] = useState<Record<string, string>>({});
  const [filter, setFilter] = useState<Record<string, string>>({});
  const lines = useInfiniteQuery(getPages('/v1/admin/audit', { query: { ...filter, limit: 50 } }));
  const outcomeOf = (name: string) => (OUTCOMES.some((one) => one === name) ? nameOf('call', name) : nameOf('approval', name));
  const change = (name: string, value: string) => setDraft((old) => ({ ...old, [name]: value }));
  const apply = () => setFilter(Object.fromEntries(Object.entries(draft).filter(([, value]) => value).map(([name, value]) => [name, valueOf(name, value)])));
  return (
    <>
      <form className="filters" onSubmit={(event) => { event.preventDefault(); apply(); }}>
        {FILTERS.map((name) => (
          <label key={name}>{say(`audit.${name}`)}<input value={draft[name] ?? ''} onChange={(event) => change(name, event.target.value.trim())} /></label>
        ))}
        <label>{say('audit.outcome')}
          <select value={draft.outcome ?? ''} onChange={(event) => change('outcome', event.target.value)}>
            <option value="">{say('approval.anyState')}</option>
            {OUTCOMES.map((name) => <option key={name} value={name}>{say(`call.${name}`)}</option>)}
          </select>
        </label>
        {TIMES.map((name) => (
          <label key={name}>{say(`audit.${name}`)}<input type="datetime-local" value={draft[name] ?? ''} onChange={(event) => change(name, event.target.value)} /></label>
        ))}
        <button type="submit">{say('admin.filter')}</button>
      </form>
      <Paged query={lines}>
        {(items) => (
          <Table label={say('admin.audit')} heads={[say('audit.at'), say('audit.actor'), say('audit.action'), say('audit.what'), say('audit.outcome'), say('details')]}>
            {items.map((line) => (
              <tr key={line.id}>
                <td><Moment at={line.at} /></td>
                <td>{line.actor}</td>
                <td><code>{line.action}</code></td>
                <td>{[line.agent, line.server, line.tool].filter(Boolean).join(' · ')}</td>
                <td><span className={`state ${line.outcome}`}>{outcomeOf(line.outcome)}</span></td>
                <td>{line.detail}</td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}
