import { RouterProvider } from '@tanstack/react-router';
import { router } from './router';
import { SignIn } from './signin/SignIn';
import { useSession } from './signin/session';
import { Look } from './style/Look';

export function App() {
  const { me, isChecking } = useSession();
  // As long as there is nothing to show, index.html shows the name.
  if (isChecking) return null;
  return <Look>{me ? <RouterProvider key={me.user} router={router} /> : <SignIn />}</Look>;
}
