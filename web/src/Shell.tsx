import { Badge, Button, Strong, Text } from '@radix-ui/themes';
import { Link, Outlet, useLocation, useParams } from '@tanstack/react-router';
import { Bell, Footprints, LogOut, MessageSquare, Plug, Settings, ShieldCheck, UserRound } from 'lucide-react';
import { lazy, Suspense, useEffect } from 'react';
import { credential } from './api/client';
import { useBadge } from './approvals/news';
import { askPermission, canAsk } from './approvals/notify';
import { beginGuide, useGuide } from './demo/guide';
import { IS_PANE } from './early';
import { toAdmin, toApprovals, toChat, toConnections } from './links';
import { Brand } from './parts/Brand';
import { showBadge } from './parts/favicon';
import { LanguageChoice } from './parts/LanguageChoice';
import { Outcomes } from './parts/Outcomes';
import { OwnUsage } from './parts/OwnUsage';
import { useMe, useSession } from './signin/session';
import { PlainButton } from './parts/PlainButton';
import { Popup } from './parts/Popup';
import { useTexts } from './texts/texts';

const PAGES = {
  chat: { Icon: MessageSquare, link: toChat() },
  approvals: { Icon: ShieldCheck, link: toApprovals() },
  connections: { Icon: Plug, link: toConnections() },
  admin: { Icon: Settings, link: toAdmin() },
};

type Page = keyof typeof PAGES;
const NAMES = Object.keys(PAGES) as Page[];

const GuideStrip = lazy(() => import('./demo/GuideStrip').then((file) => ({ default: file.GuideStrip })));
const ManagerPane = lazy(() => import('./demo/ManagerPane').then((file) => ({ default: file.ManagerPane })));

/** What is around every page; in the pane of the demo, nothing. */
export function Shell() {
  return IS_PANE ? <div className="shell"><Outcomes current="" /><Outlet /></div> : <WholeShell />;
}

/** Whether the user is the one of the demo to whom its minute is shown. */
function useGuided(): boolean {
  const { demo: { people } } = useSession();
  return people.manager !== undefined && people.finance === credential.token;
}

function WholeShell() {
  const { say } = useTexts();
  const page = useLocation({ select: ({ pathname }) => NAMES.find((name) => name === pathname.split('/')[1]) ?? 'chat' });
  const { conversation = '' } = useParams({ strict: false });
  const { pending_approvals: waiting } = useBadge();
  useEffect(() => {
    document.title = `${waiting > 0 ? `(${waiting}) ` : ''}${say(`nav.${page}`)} – Chatelaine`;
  }, [page, say, waiting]);
  useEffect(() => showBadge(waiting), [waiting]);
  const guide = useGuide();
  const isGuided = useGuided() && !guide.isClosed;
  const hasPane = isGuided && guide.hasPane;
  return (
    <div className="shell">
      <Header />
      {isGuided && <Suspense><GuideStrip /></Suspense>}
      <Outcomes current={conversation} isQueue={page === 'approvals'} />
      <div className={`beside${hasPane ? ' two' : ''}`}>
        <Outlet />
        {hasPane && <Suspense><ManagerPane /></Suspense>}
      </div>
    </div>
  );
}

function Header() {
  const { say } = useTexts();
  const me = useMe();
  const badge = useBadge();
  const names = NAMES.filter((name) => name !== 'admin' || me.scopes.includes('admin'));
  return (
    <header className="top">
      <Brand />
      <nav aria-label={say('nav')}>
        {names.map((name) => {
          const { Icon, link } = PAGES[name];
          return (
            <Link key={name} {...link}>
              <Icon size={18} />
              <span>{say(`nav.${name}`)}</span>
              {name === 'approvals' && <Count of={badge.pending_approvals} text="badge" />}
              {name === 'admin' && <Count of={badge.changed_tools ?? 0} text="badge.changed" />}
            </Link>
          );
        })}
      </nav>
      <Account />
    </header>
  );
}

function Count({ of: count, text }: { of: number; text: 'badge' | 'badge.changed' }) {
  const { say } = useTexts();
  if (count === 0) return null;
  return <Badge className="badge" variant="solid" color="red" radius="full" role="img" aria-label={say(text, { count })}>{count}</Badge>;
}

function Account() {
  const { say } = useTexts();
  const me = useMe();
  const { signOut } = useSession();
  return (
    <Popup label={me.name} button={(opens) => <Button type="button" variant="ghost" color="gray" {...opens}><UserRound size={18} /><span className="name">{me.name}</span></Button>}>
      <Text as="p" size="2"><Strong>{me.name}</Strong><br /><Text color="gray">{me.user}</Text></Text>
      <OwnUsage />
      <LanguageChoice />
      {canAsk() && <PlainButton onClick={() => void askPermission()}><Bell size={16} /> {say('notify.yes')}</PlainButton>}
      <GuideEntry />
      <PlainButton onClick={signOut}><LogOut size={16} /> {say('signout')}</PlainButton>
    </Popup>
  );
}

/** Begins the minute of the demo, as the person whom it is about. */
function GuideEntry() {
  const { say } = useTexts();
  const { demo: { people }, signIn, signOut } = useSession();
  const isGuided = useGuided();
  const { finance } = people;
  if (!finance || !people.manager) return null;
  const begin = async () => {
    if (!isGuided) {
      signOut();
      await signIn(finance);
    }
    beginGuide();
  };
  return <PlainButton onClick={() => void begin()}><Footprints size={16} /> {say('guide')}</PlainButton>;
}
