import { Menu } from 'lucide-react';
import { useState } from 'react';
import { api, read } from '../api/client';
import { useLoad } from '../parts/useLoad';
import { useTexts } from '../texts/texts';
import { ConversationBar } from './ConversationBar';
import { ConversationList } from './ConversationList';
import { ThreadView } from './ThreadView';
import { useSettled } from '../parts/useSettled';
import { Welcome } from './Welcome';

export function ChatPage({ id }: { id: string }) {
  const { say } = useTexts();
  const [words, setWords] = useState('');
  const [isArchive, setIsArchive] = useState(false);
  const search = useSettled(words.trim());
  const load = (cursor?: string) => {
    const query = { limit: 50, archived: isArchive, ...(search && { search }), ...(cursor && { cursor }) };
    return read(api.GET('/v1/conversations', { params: { query } }));
  };
  const conversations = useLoad(`${isArchive} ${search}`, load);
  const [isListOpen, setIsListOpen] = useState(false);
  return (
    <div className="chat">
      <nav className={`conversations${isListOpen ? ' open' : ''}`} aria-label={say('chat.conversations')}>
        <ConversationList
          id={id} loaded={conversations} load={load} words={words} isArchive={isArchive}
          onSearch={setWords} onArchive={setIsArchive} onOpen={() => setIsListOpen(false)}
        />
      </nav>
      <main className="conversation">
        <ConversationBar key={`bar ${id}`} id={id} listed={conversations.data?.items.find((item) => item.id === id)} onChange={conversations.reload}>
          <button type="button" className="quiet icon only-narrow" aria-expanded={isListOpen} aria-label={say('chat.conversations')} onClick={() => setIsListOpen(!isListOpen)}>
            <Menu size={18} />
          </button>
        </ConversationBar>
        {id ? <ThreadView key={id} id={id} onSaid={conversations.reload} /> : <Welcome onCreated={conversations.reload} />}
      </main>
    </div>
  );
}
