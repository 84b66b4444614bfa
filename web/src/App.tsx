import { RouterProvider } from '@tanstack/react-router';
import { IS_PANE, TOKEN } from './early';
import { router } from './router';
import { SignIn } from './signin/SignIn';
import { useSession } from './signin/session';
import { Look } from './style/Look';

/** Who comes back to the tab is shown a page as soon as it is known who that is. */
if (!IS_PANE && sessionStorage.getItem(TOKEN)) void router.load();

export function App() {
  const { me, isChecking } = useSession();
  // As long as there is nothing to show, index.html shows the name.
  if (isChecking) return null;
  return <Look>{me ? <RouterProvider key={me.user} router={router} /> : <SignIn />}</Look>;
}
