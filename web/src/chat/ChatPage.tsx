import { Menu } from 'lucide-react';
import { useState } from 'react';
import { api, read } from '../api/client';
import { useLoad } from '../parts/useLoad';
import { useTexts } from '../texts/texts';
import { ConversationBar } from './ConversationBar';
import { ConversationList } from './ConversationList';
import { ThreadView } from './ThreadView';
import { Welcome } from './Welcome';

export function ChatPage({ id }: { id: string }) {
  const { say } = useTexts();
  const conversations = useLoad('conversations', () => read(api.GET('/v1/conversations', { params: { query: { limit: 50 } } })));
  const [isListOpen, setIsListOpen] = useState(false);
  const close = () => setIsListOpen(false);
  const toggle = (
    <button type="button" className="quiet icon only-narrow" aria-expanded={isListOpen} aria-label={say('chat.conversations')} onClick={() => setIsListOpen(!isListOpen)}>
      <Menu size={18} />
    </button>
  );
  return (
    <div className="chat">
      <nav className={`conversations${isListOpen ? ' open' : ''}`} aria-label={say('chat.conversations')}>
        <ConversationList id={id} loaded={conversations} onOpen={close} />
      </nav>
      <main className="conversation">
        <ConversationBar key={id} id={id} listed={conversations.data?.items.find((item) => item.id === id)} onChange={conversations.reload}>{toggle}</ConversationBar>
        {id ? <ThreadView key={id} id={id} onSaid={conversations.reload} /> : <Welcome onCreated={conversations.reload} />}
      </main>
    </div>
  );
}
