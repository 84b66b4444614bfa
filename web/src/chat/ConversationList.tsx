import { Plus, Search } from 'lucide-react';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { Empty, Failure, Loading } from '../parts/parts';
import { type Loaded, useAction } from '../parts/useLoad';
import { href } from '../router';
import { type TextKey, useTexts } from '../texts/texts';

type Listed = Schemas['ConversationPage']['items'][number];

/** The user's conversations by the day on which something happened last. */
export function ConversationList({ id, loaded, onOpen }: {
  id: string;
  loaded: Loaded<Schemas['ConversationPage']>;
  onOpen: () => void;
}) {
  const { say } = useTexts();
  const [words, setWords] = useState('');
  const more = useAction();
  const { items = [], next } = loaded.data ?? {};
  const loadMore = () => more.run(async () => {
    const page = await read(api.GET('/v1/conversations', { params: { query: { limit: 50, cursor: next ?? '' } } }));
    loaded.setData((old) => ({ ...page, items: [...(old?.items ?? []), ...page.items] }));
  });
  const found = items.filter((item) => (item.title ?? '').toLowerCase().includes(words.trim().toLowerCase()));
  return (
    <>
      <a className="button" href={href('chat')} onClick={onOpen}><Plus size={18} /> {say('chat.new')}</a>
      <label className="search">
        <span className="sr-only">{say('chat.search')}</span>
        <Search size={16} />
        <input type="search" placeholder={say('chat.search')} value={words} onChange={(event) => setWords(event.target.value)} />
      </label>
      {loaded.error && !loaded.data && <Failure error={loaded.error} retry={loaded.reload} />}
      {!loaded.data && !loaded.error && <Loading />}
      {loaded.data && found.length === 0 && <Empty>{say(words ? 'chat.search.none' : 'chat.none')}</Empty>}
      {groups(found).map(([name, group]) => (
        <section key={name} aria-label={say(name)}>
          <h2>{say(name)}</h2>
          <ul>{group.map((item) => <Item key={item.id} item={item} isCurrent={item.id === id} onOpen={onOpen} />)}</ul>
        </section>
      ))}
      {next && <button type="button" className="quiet" disabled={more.isBusy} onClick={() => void loadMore()}>{say('more')}</button>}
      <Failure error={more.error} />
    </>
  );
}

function Item({ item, isCurrent, onOpen }: { item: Listed; isCurrent: boolean; onOpen: () => void }) {
  const { say } = useTexts();
  return (
    <li>
      <a href={href('chat', item.id)} aria-current={isCurrent ? 'page' : undefined} onClick={onOpen}>
        <span className="title">{item.title || say('chat.untitled')}</span> <span className="muted">{item.agent}</span>
      </a>
    </li>
  );
}

const DAY = 86_400_000;

/** By age, in the order of the list. */
function groups(items: Listed[]): [TextKey, Listed[]][] {
  const today = new Date().setHours(0, 0, 0, 0);
  const groupOf = (item: Listed): TextKey => {
    const at = Date.parse(item.updated_at);
    if (at >= today) return 'chat.today';
    if (at >= today - DAY) return 'chat.yesterday';
    return at >= today - 7 * DAY ? 'chat.week' : 'chat.older';
  };
  return [...Map.groupBy(items, groupOf)];
}
