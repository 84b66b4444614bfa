import { Button, Heading, Text, TextField } from '@radix-ui/themes';
import type { UseInfiniteQueryResult } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Archive, Pin, Plus, Search } from 'lucide-react';
import type { Schemas } from '../api/client';
import { Empty, More, Pending } from '../parts/parts';
import { toChat } from '../links';
import { type TextKey, useTexts } from '../texts/texts';

type Listed = Schemas['ConversationPage']['items'][number];

/** The user's conversations: the pinned ones, and the others by the day on which something happened last. */
export function ConversationList({ query, words, isArchive, onSearch, onArchive, onOpen }: {
  query: UseInfiniteQueryResult<Listed[]>;
  words: string;
  isArchive: boolean;
  onSearch: (words: string) => void;
  onArchive: (isArchive: boolean) => void;
  onOpen: () => void;
}) {
  const { say } = useTexts();
  const items = query.data ?? [];
  const none = words ? 'chat.search.none' : isArchive ? 'chat.archive.none' : 'chat.none';
  return (
    <>
      <Button asChild variant="surface"><Link {...toChat()} activeOptions={{ exact: true }} onClick={onOpen}><Plus size={16} /> {say('chat.new')}</Link></Button>
      <TextField.Root type="search" maxLength={200} aria-label={say('chat.search')} placeholder={say('chat.search')} value={words} onChange={(event) => onSearch(event.target.value)}>
        <TextField.Slot><Search size={16} /></TextField.Slot>
      </TextField.Root>
      {!query.data && <Pending query={query} />}
      {query.data?.length === 0 && <Empty>{say(none)}</Empty>}
      {groups(items).map(([name, group]) => (
        <section key={name} aria-label={say(name)}>
          <Heading as="h2" size="1" color="gray" mx="2" mt="2" mb="1">{say(name)}</Heading>
          <ul>{group.map((item) => <Item key={item.id} item={item} onOpen={onOpen} />)}</ul>
        </section>
      ))}
      {query.data && <More query={query} />}
      <Button type="button" variant={isArchive ? 'soft' : 'ghost'} color="gray" aria-pressed={isArchive} onClick={() => onArchive(!isArchive)}><Archive size={16} /> {say('chat.archived')}</Button>
    </>
  );
}

function Item({ item, onOpen }: { item: Listed; onOpen: () => void }) {
  const { say } = useTexts();
  return (
    <li>
      <Link {...toChat(item.id)} onClick={onOpen}>
        {item.pinned && <Pin size={14} />}
        <span className="title">{item.title || say('chat.untitled')}{item.found && <Text size="1" color="gray"><br />{item.found.text}</Text>}</span>
        <Text size="1" color="gray">{item.agent}</Text>
      </Link>
    </li>
  );
}

const DAY = 86_400_000;

/** In the order of the list. */
function groups(items: Listed[]): [TextKey, Listed[]][] {
  const today = new Date().setHours(0, 0, 0, 0);
  const groupOf = (item: Listed): TextKey => {
    if (item.pinned) return 'chat.pinned';
    const at = Date.parse(item.updated_at);
    if (at >= today) return 'chat.today';
    if (at >= today - DAY) return 'chat.yesterday';
    return at >= today - 7 * DAY ? 'chat.week' : 'chat.older';
  };
  return [...Map.groupBy(items, groupOf)];
}
