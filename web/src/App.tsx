import { RouterProvider } from '@tanstack/react-router';
import { Loading } from './parts/parts';
import { router } from './router';
import { SignIn } from './signin/SignIn';
import { useSession } from './signin/session';

export function App() {
  const { me, isChecking } = useSession();
  if (isChecking) return <Loading />;
  return me ? <RouterProvider key={me.user} router={router} /> : <SignIn />;
}
