/** For the admins of a tenant: who may do what, what there is, and what happened. */
import { Badge, Heading, Text } from '@radix-ui/themes';
import { createLazyRoute } from '@tanstack/react-router';
import { Activity, BarChart3, Blocks, FileDiff, Gauge, HeartPulse, KeyRound, Network, Scale, ScrollText, Server, Users, Webhook } from 'lucide-react';
import { lazy, Suspense } from 'react';
import { PageLink } from '../parts/PageLink';
import { Empty, Loading } from '../parts/parts';
import { toAdmin, toChat } from '../links';
import { useBadge } from '../approvals/news';
import { useMe } from '../signin/session';
import '../style/admin.css';
import { useTexts } from '../texts/texts';
import { AccessPage } from './access/AccessPage';
import { AuditPage } from './AuditPage';
import { AgentsPage } from './agents/AgentsPage';
import { CapabilitiesPage } from './agents/CapabilitiesPage';
import { ChangedToolsPage } from './ChangedToolsPage';
import { HealthPage } from './HealthPage';
import { KeysPage } from './KeysPage';
import { LimitsPage } from './LimitsPage';
import { PoliciesPage } from './PoliciesPage';
import { RegistryPage } from './registry/RegistryPage';
import { UsersPage } from './users/UsersPage';
import { WebhooksPage } from './WebhooksPage';

/** The charts are loaded when somebody looks at them. */
const UsagePage = lazy(() => import('./UsagePage'));

const PARTS = {
  users: { Icon: Users, Page: UsersPage },
  access: { Icon: Network, Page: AccessPage },
  policies: { Icon: Scale, Page: PoliciesPage },
  servers: { Icon: Server, Page: RegistryPage },
  changed: { Icon: FileDiff, Page: ChangedToolsPage },
  agents: { Icon: Activity, Page: AgentsPage },
  capabilities: { Icon: Blocks, Page: CapabilitiesPage },
  usage: { Icon: BarChart3, Page: UsagePage },
  limits: { Icon: Gauge, Page: LimitsPage },
  audit: { Icon: ScrollText, Page: AuditPage },
  keys: { Icon: KeyRound, Page: KeysPage },
  webhooks: { Icon: Webhook, Page: WebhooksPage },
  health: { Icon: HeartPulse, Page: HealthPage },
} as const;

/** On a phone the parts are a line that is longer than the window. */
const bringIntoView = (link: HTMLAnchorElement | null) => link?.scrollIntoView({ block: 'nearest', inline: 'nearest' });

type Part = keyof typeof PARTS;
const NAMES = Object.keys(PARTS) as Part[];

export const route = createLazyRoute('/admin/{-$part}/{-$item}')({ component: AdminPage });

function AdminPage() {
  const { part, item = '' } = route.useParams();
  const { say } = useTexts();
  const changed = useBadge().changed_tools ?? 0;
  const shown = NAMES.find((name) => name === part) ?? 'users';
  const { Page } = PARTS[shown];
  if (!useMe().scopes.includes('admin')) return <main className="page"><Empty>{say('admin.only')} <PageLink {...toChat()}>{say('nav.chat')}</PageLink></Empty></main>;
  return (
    <div className="admin">
      <nav aria-label={say('nav.admin')}>
        {NAMES.map((name) => {
          const { Icon } = PARTS[name];
          return <PageLink key={name} {...toAdmin(name)} ref={name === shown ? bringIntoView : undefined}><Icon size={16} /> {say(`admin.${name}`)}{name === 'changed' && changed > 0 && <> <Badge className="badge" variant="solid" color="red" radius="full" role="img" aria-label={say('badge.changed', { count: changed })}>{changed}</Badge></>}</PageLink>;
        })}
      </nav>
      <main className="page">
        <header><Heading as="h1" size="6">{say(`admin.${shown}`)}</Heading><Text as="p" size="2" color="gray">{say(`admin.${shown}.about`)}</Text></header>
        <Suspense fallback={<Loading />}><Page item={item} /></Suspense>
      </main>
    </div>
  );
}
