import { Badge, Button, Strong, Text } from '@radix-ui/themes';
import { Link, Outlet, useLocation, useParams } from '@tanstack/react-router';
import { LogOut, MessageSquare, Plug, Settings, ShieldCheck, UserRound } from 'lucide-react';
import { useEffect } from 'react';
import { useBadge } from './approvals/news';
import { toAdmin, toApprovals, toChat, toConnections } from './links';
import { Brand } from './parts/Brand';
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

/** What is around every page. */
export function Shell() {
  const { say } = useTexts();
  const page = useLocation({ select: ({ pathname }) => NAMES.find((name) => name === pathname.split('/')[1]) ?? 'chat' });
  const { conversation = '' } = useParams({ strict: false });
  const { pending_approvals: waiting } = useBadge();
  useEffect(() => {
    document.title = `${waiting > 0 ? `(${waiting}) ` : ''}${say(`nav.${page}`)} – Chatelaine`;
  }, [page, say, waiting]);
  return (
    <div className="shell">
      <Header />
      <Outcomes current={conversation} />
      <Outlet />
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
              {name === 'approvals' && badge.pending_approvals > 0 && (
                <Badge className="badge" variant="solid" color="red" radius="full" role="img" aria-label={say('badge', { count: badge.pending_approvals })}>{badge.pending_approvals}</Badge>
              )}
            </Link>
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
    <Popup label={me.name} button={(opens) => <Button type="button" variant="ghost" color="gray" {...opens}><UserRound size={18} /><span className="name">{me.name}</span></Button>}>
      <Text as="p" size="2"><Strong>{me.name}</Strong><br /><Text color="gray">{me.user}</Text></Text>
      <OwnUsage />
      <LanguageChoice />
      <PlainButton onClick={signOut}><LogOut size={16} /> {say('signout')}</PlainButton>
    </Popup>
  );
}
