/** The address of what is shown is the fragment, `#/approvals`: the server knows one page. */
import { createHashHistory, createRootRoute, createRoute, createRouter, Navigate, redirect } from '@tanstack/react-router';
import { ChatPage } from './chat/ChatPage';
import { toAdmin, toChat } from './links';
import { NotLoaded } from './parts/NotLoaded';
import { Loading } from './parts/parts';
import { Shell } from './Shell';

const root = createRootRoute({ component: Shell, notFoundComponent: () => <Navigate {...toChat()} replace /> });

const index = createRoute({
  getParentRoute: () => root,
  path: '/',
  beforeLoad: () => {
    throw redirect({ ...toChat(), replace: true });
  },
});

const chat = createRoute({
  getParentRoute: () => root,
  path: '/chat/{-$conversation}',
  component: function Chat() {
    return <ChatPage id={chat.useParams().conversation ?? ''} />;
  },
});

// What is not the chat is loaded when somebody is about to open it.

const approvals = createRoute({ getParentRoute: () => root, path: '/approvals/{-$approval}' })
  .lazy(() => import('./approvals/ApprovalsPage').then(({ route }) => route));

const connections = createRoute({ getParentRoute: () => root, path: '/connections/{-$agent}' })
  .lazy(() => import('./connections/ConnectionsPage').then(({ route }) => route));

const admin = createRoute({
  getParentRoute: () => root,
  path: '/admin/{-$part}/{-$item}',
  beforeLoad: ({ params }) => {
    if (!params.part) throw redirect({ ...toAdmin('users'), replace: true });
  },
}).lazy(() => import('./admin/AdminPage').then(({ route }) => route));

export const router = createRouter({
  routeTree: root.addChildren([index, chat, approvals, connections, admin]),
  history: createHashHistory(),
  defaultPreload: 'intent',
  defaultPendingComponent: Loading,
  defaultErrorComponent: NotLoaded,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
