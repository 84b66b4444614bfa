import { useState } from 'react';
import { api, read } from '../api/client';
import { Moment } from '../parts/parts';
import { useLoad } from '../parts/useLoad';
import { useTexts } from '../texts/texts';
import { Paged, Table } from './Table';

const FILTERS = ['actor', 'action', 'server', 'tool', 'outcome'] as const;

export function AuditPage() {
  const { say } = useTexts();
  const [draft, setDraft] = useState<Record<string, string>>({});
  const [filter, setFilter] = useState<Record<string, string>>({});
  const load = (cursor?: string) => read(api.GET('/v1/admin/audit', { params: { query: { ...filter, ...(cursor && { cursor }), limit: 50 } } }));
  const lines = useLoad(JSON.stringify(filter), load);
  const apply = () => setFilter(Object.fromEntries(Object.entries(draft).filter(([, value]) => value)));
  return (
    <>
      <form className="filters" onSubmit={(event) => { event.preventDefault(); apply(); }}>
        {FILTERS.map((name) => (
          <label key={name}>{say(`audit.${name}`)}<input value={draft[name] ?? ''} onChange={(event) => setDraft((old) => ({ ...old, [name]: event.target.value.trim() }))} /></label>
        ))}
        <button type="submit">{say('admin.filter')}</button>
      </form>
      <Paged loaded={lines} load={load}>
        {(items) => (
          <Table label={say('admin.audit')} heads={[say('audit.at'), say('audit.actor'), say('audit.action'), say('audit.what'), say('audit.outcome'), say('details')]}>
            {items.map((line) => (
              <tr key={line.id}>
                <td><Moment at={line.at} /></td>
                <td>{line.actor}</td>
                <td><code>{line.action}</code></td>
                <td>{[line.agent, line.server, line.tool].filter(Boolean).join(' · ')}</td>
                <td><span className={`state ${line.outcome}`}>{line.outcome}</span></td>
                <td>{line.detail}</td>
              </tr>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}
