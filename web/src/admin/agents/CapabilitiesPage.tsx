import { Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { Fragment } from 'react';
import { get } from '../../api/queries';
import { ChoiceEntry } from '../../parts/Field';
import { PageLink } from '../../parts/PageLink';
import { Empty, Pending } from '../../parts/parts';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { ServerSettings } from './ServerSettings';

/** The capabilities that agents share, and what is set for their servers. */
export function CapabilitiesPage({ item }: { item: string }) {
  const { say } = useTexts();
  const navigate = useNavigate();
  const capabilities = useQuery(get('/v1/admin/capabilities'));
  if (!capabilities.data) return <Pending query={capabilities} />;
  const { items } = capabilities.data;
  const chosen = items.find(({ name }) => name === item) ?? items[0];
  if (!chosen) return <Empty>{say('capabilities.none')}</Empty>;
  return (
    <>
      <div className="filters">
        <ChoiceEntry
          label={say('capabilities.one')} value={chosen.name} onChange={(name) => void navigate(toAdmin('capabilities', name))}
          options={items.map(({ name }) => [name, name] as const)}
        />
      </div>
      <Text as="p" size="2" color="gray">
        {say('server.used')}: {chosen.agents.map((agent, at) => <Fragment key={agent}>{at > 0 && ', '}<PageLink {...toAdmin('agents', agent)}>{agent}</PageLink></Fragment>)}
      </Text>
      <ServerSettings key={chosen.name} owner={{ level: 'capability', name: chosen.name }} />
    </>
  );
}
