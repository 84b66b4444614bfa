import { Heading } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { lazy, Suspense } from 'react';
import { get } from '../../api/queries';
import { Loading, Pending } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { lastDays, usedOf } from '../usage';

const UsageChart = lazy(() => import('../UsageChart'));
const PERIOD = 14;

/** What one user has used on each of the last days. */
export function UserUsage({ user }: { user: string }) {
  const { say } = useTexts();
  const days = useQuery(get('/v1/admin/usage/days', { query: { ...lastDays(PERIOD), user } }));
  const title = say('usage.chart', { measure: say('usage.tokens') });
  return (
    <section aria-label={title}>
      <Heading as="h2" size="4">{title}</Heading>
      {days.data
        ? <Suspense fallback={<Loading />}><UsageChart days={days.data.items.map((line) => usedOf(line.day, line))} measure="tokens" /></Suspense>
        : <Pending query={days} />}
    </section>
  );
}
