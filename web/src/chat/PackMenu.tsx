import { Badge, Button } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useEffect } from 'react';
import { useBadge } from '../approvals/news';
import { get, invalidate } from '../api/queries';
import { useTexts } from '../texts/texts';

const PATH = '/v1/agents/{agent}/menu';

/** What the pack of an agent offers besides talking: its own items, as they are now. */
export function PackMenu({ id, agent, said, isRunning, isBusy, onChoose }: {
  /** The conversation. */
  id: string;
  agent: string;
  /** How many messages there are. */
  said: number;
  isRunning: boolean;
  isBusy: boolean;
  onChoose: (item: string) => void;
}) {
  const { say } = useTexts();
  const waiting = useBadge();
  const { data: menu } = useQuery(get(PATH, { path: { agent }, query: { conversation: id } }));
  // What is shown depends on what was said, and on what waits.
  useEffect(() => {
    if (!isRunning) void invalidate(PATH);
  }, [said, isRunning, waiting]);
  if (!menu?.own || menu.items.length === 0) return null;
  return (
    <nav className="pack-menu" aria-label={menu.title ?? say('chat.menu')}>
      {menu.items.map(({ id: item, label, badge }) => (
        <Button key={item} type="button" size="1" radius="full" variant="soft" color="gray" disabled={isBusy} onClick={() => onChoose(item)}>
          {label}
          {badge && <Badge className="badge" variant="solid" color="red" radius="full" role="img" aria-label={say('chat.menu.badge', { count: badge })}>{badge}</Badge>}
        </Button>
      ))}
    </nav>
  );
}
