import { MessageSquare, Plug, Settings, ShieldCheck, UserRound } from 'lucide-react';
import { lazy, Suspense, useEffect } from 'react';
import { ApprovalsPage } from './approvals/ApprovalsPage';
import { useBadge } from './approvals/news';
import { ChatPage } from './chat/ChatPage';
import { ConnectionsPage } from './connections/ConnectionsPage';
import { Brand } from './parts/Brand';
import { LanguageChoice } from './parts/LanguageChoice';
import { Outcomes } from './parts/Outcomes';
import { OwnUsage } from './parts/OwnUsage';
import { PartBoundary } from './parts/PartBoundary';
import { Empty, Loading } from './parts/parts';
import { href, type Page, useRoute } from './router';
import { SignIn } from './signin/SignIn';
import { useMe, useSession } from './signin/session';
import { useTexts } from './texts/texts';

const AdminPage = lazy(() => import('./admin/AdminPage'));

export function App() {
  const { me, isChecking } = useSession();
  if (isChecking) return <Loading />;
  if (!me) return <SignIn />;
  return <Shell key={me.user} />;
}

function Shell() {
  const route = useRoute();
  const { say } = useTexts();
  const isAdmin = useMe().scopes.includes('admin');
  const { pending_approvals: waiting } = useBadge();
  useEffect(() => {
    document.title = `${waiting > 0 ? `(${waiting}) ` : ''}${say(`nav.${route.page}`)} – Chatelaine`;
  }, [route.page, say, waiting]);
  return (
    <div className="shell">
      <Header page={route.page} />
      <Outcomes current={route.page === 'chat' ? route.id : ''} />
      {route.page === 'chat' && <ChatPage id={route.id} />}
      {route.page === 'approvals' && <ApprovalsPage id={route.id} />}
      {route.page === 'connections' && <ConnectionsPage agent={route.id} />}
      {route.page === 'admin' && !isAdmin && <main className="page"><Empty>{say('admin.only')} <a href={href('chat')}>{say('nav.chat')}</a></Empty></main>}
      {route.page === 'admin' && isAdmin && <PartBoundary><Suspense fallback={<Loading />}><AdminPage part={route.id} item={route.item} /></Suspense></PartBoundary>}
    </div>
  );
}

const ICONS = { chat: MessageSquare, approvals: ShieldCheck, connections: Plug, admin: Settings };

function Header({ page }: { page: Page }) {
  const { say } = useTexts();
  const me = useMe();
  const badge = useBadge();
  const pages: Page[] = me.scopes.includes('admin') ? ['chat', 'approvals', 'connections', 'admin'] : ['chat', 'approvals', 'connections'];
  return (
    <header className="top">
      <Brand />
      <nav aria-label={say('nav')}>
        {pages.map((name) => {
          const Icon = ICONS[name];
          return (
            <a key={name} href={href(name)} aria-current={page === name ? 'page' : undefined}>
              <Icon size={18} />
              <span>{say(`nav.${name}`)}</span>
              {name === 'approvals' && badge.pending_approvals > 0 && (
                <span className="badge" role="img" aria-label={say('badge', { count: badge.pending_approvals })}>{badge.pending_approvals}</span>
              )}
            </a>
          );
        })}
      </nav>
      <Account />
    </header>
  );
}

function Account() {
  const { say } = useTexts();
  const me = useMe();
  const { signOut } = useSession();
  return (
    <div className="who">
      <button type="button" className="quiet" popoverTarget="account"><UserRound size={18} /><span className="name">{me.name}</span></button>
      <div id="account" popover="auto" className="menu">
        <p><b>{me.name}</b><br /><span className="muted">{me.user}</span></p>
        <OwnUsage />
        <LanguageChoice />
        <button type="button" onClick={signOut}>{say('signout')}</button>
      </div>
    </div>
  );
}
