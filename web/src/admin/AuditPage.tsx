import { Code } from '@radix-ui/themes';
import { useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { getPages } from '../api/queries';
import { ChoiceEntry, TextEntry } from '../parts/Field';
import { PlainButton } from '../parts/PlainButton';
import { Moment, StateBadge } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { Cell, Paged, Row, Table } from './Table';

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
          <TextEntry key={name} label={say(`audit.${name}`)} value={draft[name] ?? ''} onChange={(value) => change(name, value.trim())} />
        ))}
        <ChoiceEntry
          label={say('audit.outcome')} value={draft.outcome ?? ''} onChange={(value) => change('outcome', value)}
          options={[['', say('approval.anyState')], ...OUTCOMES.map((name) => [name, say(`call.${name}`)] as const)]}
        />
        {TIMES.map((name) => (
          <TextEntry key={name} label={say(`audit.${name}`)} type="datetime-local" value={draft[name] ?? ''} onChange={(value) => change(name, value)} />
        ))}
        <PlainButton type="submit">{say('admin.filter')}</PlainButton>
      </form>
      <Paged query={lines}>
        {(items) => (
          <Table label={say('admin.audit')} heads={[say('audit.at'), say('audit.actor'), say('audit.action'), say('audit.what'), say('audit.outcome'), say('details')]}>
            {items.map((line) => (
              <Row key={line.id}>
                <Cell><Moment at={line.at} /></Cell>
                <Cell>{line.actor}</Cell>
                <Cell><Code variant="ghost">{line.action}</Code></Cell>
                <Cell>{[line.agent, line.server, line.tool].filter(Boolean).join(' · ')}</Cell>
                <Cell><StateBadge state={line.outcome}>{outcomeOf(line.outcome)}</StateBadge></Cell>
                <Cell>{line.detail}</Cell>
              </Row>
            ))}
          </Table>
        )}
      </Paged>
    </>
  );
}
