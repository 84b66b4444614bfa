import { Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { Pending } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { AddServer } from './AddServer';
import { ServerSetting } from './ServerSetting';
import { keyOf, listServers, type Owner } from './settings';

/** What a tenant's admins set for the servers of an agent or a capability. */
export function ServerSettings({ owner }: { owner: Owner }) {
  const { say } = useTexts();
  const servers = useQuery({ queryKey: keyOf(owner), queryFn: () => listServers(owner) });
  return (
    <>
      <Heading as="h2" size="4">{say('setting')}</Heading>
      <Text as="p" size="2" color="gray">{say('setting.about')}</Text>
      {servers.data ? servers.data.map((view) => <ServerSetting key={view.server} owner={owner} view={view} />) : <Pending query={servers} />}
      <AddServer owner={owner} />
    </>
  );
}
