import { Card } from '@radix-ui/themes';
import type { ReactElement } from 'react';

/** Sets an element of its own apart from the page. */
export function Panel({ children }: { children: ReactElement }) {
  return <Card asChild size="2" className="panel">{children}</Card>;
}
