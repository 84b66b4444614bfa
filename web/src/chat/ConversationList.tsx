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
      <Link className="button" {...toChat()} activeOptions={{ exact: true }} onClick={onOpen}><Plus size={18} /> {say('chat.new')}</Link>
      <label className="search">
        <span className="sr-only">{say('chat.search')}</span>
        <Search size={16} />
        <input type="search" maxLength={200} placeholder={say('chat.search')} value={words} onChange={(event) => onSearch(event.target.value)} />
      </label>
      {!query.data && <Pending query={query} />}
      {query.data?.length === 0 && <Empty>{say(none)}</Empty>}
      {groups(items).map(([name, group]) => (
        <section key={name} aria-label={say(name)}>
          <h2>{say(name)}</h2>
          <ul>{group.map((item) => <Item key={item.id} item={item} onOpen={onOpen} />)}</ul>
        </section>
      ))}
      {query.data && <More query={query} />}
      <button type="button" className="quiet" aria-pressed={isArchive} onClick={() => onArchive(!isArchive)}><Archive size={16} /> {say('chat.archived')}</button>
    </>
  );
}

function Item({ item, onOpen }: { item: Listed; onOpen: () => void }) {
  const { say } = useTexts();
  return (
    <li>
      <Link {...toChat(item.id)} onClick={onOpen}>
        {item.pinned && <Pin size={14} />}
        <span className="title">{item.title || say('chat.untitled')}{item.found && <span className="muted"><br />{item.found.text}</span>}</span>
        <span className="muted">{item.agent}</span>
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
