import { Heading } from '@radix-ui/themes';
import { useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../api/client';
import { getPages } from '../../api/queries';
import { ChoiceEntry, TextEntry } from '../../parts/Field';
import { Panel } from '../../parts/Panel';
import { More, Pending } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { SettingForm } from './ServerSetting';
import type { ConfigKey, ConfiguredServer, Owner } from './settings';

type Entry = Schemas['EntryView'];

/** A server as it would be with the defaults of its entry. */
function preview(entry: Entry, server: string): ConfiguredServer {
  const defaults = (entry.default_config ?? {}) as Record<string, unknown>;
  const config = Object.entries(entry.config_schema ?? {}).map(([key, schema]) => ({
    ...schema, key, value: defaults[key], header: '', note: key in defaults ? 'from registry default' : 'not set',
  })) as ConfigKey[];
  return { server, ref: entry.id ?? '', name: entry.name ?? '', inherited: false, config };
}

/** Adds a server of the registry to an agent or a capability. */
export function AddServer({ owner }: { owner: Owner }) {
  const { say } = useTexts();
  const entries = useInfiniteQuery(getPages('/v1/mcp-servers', { query: { limit: 100 } }));
  const [id, setId] = useState('');
  const [name, setName] = useState('');
  const entry = entries.data?.find((item) => item.id === id);
  const choose = (next: string) => { setId(next); setName(next); };
  return (
    <Panel>
      <section aria-label={say('setting.add')}>
        <Heading as="h3" size="3">{say('setting.add')}</Heading>
        {!entries.data && <Pending query={entries} />}
        {entries.data && (
          <div className="filters">
            <ChoiceEntry
              label={say('setting.entry')} value={id} onChange={choose}
              options={[['', say('setting.access.choose')], ...entries.data.map((item) => [item.id ?? '', `${item.name} (${item.id})`] as const)]}
            />
            {entry && <TextEntry label={say('setting.name')} required value={name} onChange={setName} />}
          </div>
        )}
        <More query={entries} />
        {entry && <SettingForm key={id} owner={owner} view={preview(entry, name)} etag="" onSaved={() => choose('')} />}
      </section>
    </Panel>
  );
}
