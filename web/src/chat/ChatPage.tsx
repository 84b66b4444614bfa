import { keepPreviousData, useInfiniteQuery } from '@tanstack/react-query';
import { Menu } from 'lucide-react';
import { useState } from 'react';
import { getPages, TYPING } from '../api/queries';
import { IconAction } from '../parts/IconAction';
import { useTexts } from '../texts/texts';
import { ConversationBar } from './ConversationBar';
import { ConversationList } from './ConversationList';
import { ThreadView } from './ThreadView';
import { Welcome } from './Welcome';

export function ChatPage({ id }: { id: string }) {
  const { say } = useTexts();
  const [words, setWords] = useState('');
  const [isArchive, setIsArchive] = useState(false);
  const search = words.trim();
  const query = { limit: 50, archived: isArchive, ...(search && { search }) };
  const conversations = useInfiniteQuery({ ...getPages('/v1/conversations', { query }, search ? TYPING : 0), placeholderData: keepPreviousData });
  const [isListOpen, setIsListOpen] = useState(false);
  return (
    <div className="chat">
      <nav className={`conversations${isListOpen ? ' open' : ''}`} aria-label={say('chat.conversations')}>
        <ConversationList
          query={conversations} words={words} isArchive={isArchive}
          onSearch={setWords} onArchive={setIsArchive} onOpen={() => setIsListOpen(false)}
        />
      </nav>
      <main className="conversation">
        <ConversationBar key={`bar ${id}`} id={id} listed={conversations.data?.find((item) => item.id === id)} isListLoaded={conversations.isFetched}>
          <IconAction label={say('chat.conversations')} className="only-narrow" aria-expanded={isListOpen} onClick={() => setIsListOpen(!isListOpen)}><Menu size={18} /></IconAction>
        </ConversationBar>
        {id ? <ThreadView key={id} id={id} /> : <Welcome />}
      </main>
    </div>
  );
}
