import { Button, Card, Flex, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { MessageSquarePlus } from 'lucide-react';
import type { Schemas } from '../api/client';
import { get } from '../api/queries';
import { PageLink } from '../parts/PageLink';
import { Empty, Failure, Pending } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { toChat, toConnections } from '../links';
import { useMe } from '../signin/session';
import { useTexts } from '../texts/texts';
import { beginConversation } from './beginConversation';
import { FirstMessage } from './FirstMessage';

/** Whom one can talk to, and a field to begin at once. */
export function Welcome() {
  const { say } = useTexts();
  const me = useMe();
  const navigate = useNavigate();
  const agents = useQuery(get('/v1/agents'));
  const { isBusy, error, run } = useAction();
  if (!agents.data) return <Pending query={agents} />;
  const { items } = agents.data;
  const start = (agent: string, text?: string) => run(async () => {
    await navigate(toChat(await beginConversation(agent, text)));
  });
  return (
    <div className="thread">
      <div className="column welcome">
        <Heading as="h2" size="6" align="center">{say('chat.hello', { name: me.name })}</Heading>
        {items.length === 0 ? <Empty>{say('chat.agents.none')}</Empty> : <FirstMessage agents={items} isBusy={isBusy} onStart={start} />}
        <Failure error={error} />
        <ul className="agents">
          {items.map((agent) => <Card asChild key={agent.id} size="2"><li><Agent agent={agent} isBusy={isBusy} onStart={() => void start(agent.id)} /></li></Card>)}
        </ul>
      </div>
    </div>
  );
}

function Agent({ agent, isBusy, onStart }: { agent: Schemas['AgentView']; isBusy: boolean; onStart: () => void }) {
  const { say } = useTexts();
  return (
    <Flex direction="column" gap="2" height="100%">
      <Heading as="h3" size="3">{agent.display_name}</Heading>
      <Text as="p" size="2" color="gray" className="about">{agent.description}</Text>
      <Flex align="center" wrap="wrap" gap="3">
        <Button type="button" variant="surface" disabled={isBusy} onClick={onStart}>
          <MessageSquarePlus size={16} /> {say('chat.talk', { agent: agent.display_name })}
        </Button>
        <PageLink size="2" {...toConnections(agent.id)}>{say('nav.connections')}</PageLink>
      </Flex>
    </Flex>
  );
}
