import { lazy, Suspense, useEffect, useState } from 'react';
import { ApprovalsPage } from './approvals/ApprovalsPage';
import { NewsProvider, useNews } from './approvals/news';
import { ChatPage } from './chat/ChatPage';
import { ConnectionsPage } from './connections/ConnectionsPage';
import { Loading } from './parts/parts';
import { href, type Page, useRoute } from './router';
import { useMe, useSession } from './session';
import { SignIn } from './SignIn';
import { type Language, LANGUAGES, useTexts } from './texts/texts';

const AdminPage = lazy(() => import('./admin/AdminPage'));

export function App() {
  const { me, isChecking } = useSession();
  if (isChecking) return <Loading />;
  if (!me) return <SignIn />;
  return (
    <NewsProvider key={me.user}>
      <Shell />
    </NewsProvider>
  );
}

function Shell() {
  const route = useRoute();
  const { say } = useTexts();
  useEffect(() => {
    document.title = `${say(`nav.${route.page}`)} – Chatelaine`;
  }, [route.page, say]);
  return (
    <div className="shell">
      <Header page={route.page} />
      <Outcomes current={route.page === 'chat' ? route.id : ''} />
      {route.page === 'chat' && <ChatPage id={route.id} />}
      {route.page === 'approvals' && <ApprovalsPage id={route.id} />}
      {route.page === 'connections' && <ConnectionsPage agent={route.id} />}
      {route.page === 'admin' && <Suspense fallback={<Loading />}><AdminPage part={route.id} /></Suspense>}
    </div>
  );
}

function Header({ page }: { page: Page }) {
  const { say } = useTexts();
  const me = useMe();
  const { signOut } = useSession();
  const { badge } = useNews();
  const [isOpen, setIsOpen] = useState(false);
  const pages: Page[] = me.scopes.includes('admin') ? ['chat', 'approvals', 'connections', 'admin'] : ['chat', 'approvals', 'connections'];
  return (
    <header className="top">
      <nav aria-label={say('nav')}>
        {pages.map((name) => (
          <a key={name} href={href(name)} aria-current={page === name ? 'page' : undefined}>
            {say(`nav.${name}`)}
            {name === 'approvals' && badge.pending_approvals > 0 && (
              <span className="badge" aria-label={say('badge', { count: badge.pending_approvals })}>{badge.pending_approvals}</span>
            )}
          </a>
        ))}
      </nav>
      <div className="who">
        <button type="button" className="quiet" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>{me.name}</button>
        {isOpen && (
          <div className="menu">
            <p className="muted">{me.user}</p>
            <LanguageChoice />
            <button type="button" onClick={signOut}>{say('signout')}</button>
          </div>
        )}
      </div>
    </header>
  );
}

/** Outcomes of own requests, wherever one is; the conversation itself tells its own. */
function Outcomes({ current }: { current: string }) {
  const { say } = useTexts();
  const { outcomes, dismiss } = useNews();
  const elsewhere = outcomes.filter((view) => !current || view.conversation_id !== current);
  return (
    <div className="toasts" role="status">
      {elsewhere.map((view) => (
        <p key={view.id} className="toast">
          <a href={view.conversation_id ? href('chat', view.conversation_id) : href('approvals', view.id)} onClick={() => dismiss(view.id)}>{view.text}</a>
          <button type="button" className="quiet" aria-label={say('close')} onClick={() => dismiss(view.id)}>✕</button>
        </p>
      ))}
    </div>
  );
}

export function LanguageChoice() {
  const { say, language, setLanguage } = useTexts();
  return (
    <label className="language">{say('language')}
      <select value={language} onChange={(event) => setLanguage(event.target.value as Language)}>
        {LANGUAGES.map(([tag, name]) => <option key={tag} value={tag}>{name}</option>)}
      </select>
    </label>
  );
}
