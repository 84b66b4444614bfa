import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { get } from '../api/queries';
import { ChoiceEntry } from '../parts/Field';
import { Pending } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { lastDays, type Measure, MEASURES, type Used, usedOf } from './usage';
import UsageChart, { UsageTable } from './UsageChart';
import { Totals } from './Totals';

const PERIODS = [7, 14, 30] as const;

/** What was used by day, and by user and agent. */
export default function UsagePage() {
  const { say } = useTexts();
  const [period, setPeriod] = useState<number>(7);
  const [measure, setMeasure] = useState<Measure>('tokens');
  const query = lastDays(period);
  const days = useQuery(get('/v1/admin/usage/days', { query }));
  const users = useQuery(get('/v1/admin/usage', { query: { ...query, limit: 1000 } }));
  return (
    <>
      <div className="filters">
        <ChoiceEntry
          label={say('usage.period')} value={period} onChange={(value) => setPeriod(Number(value))}
          options={PERIODS.map((days) => [String(days), say('usage.days', { count: days })] as const)}
        />
        <ChoiceEntry
          label={say('usage.measure')} value={measure} onChange={(value) => setMeasure(value as Measure)}
          options={MEASURES.map((name) => [name, say(`usage.${name}`)] as const)}
        />
      </div>
      {days.data && users.data
        ? <Shown days={days.data.items.map((line) => usedOf(line.day, line))} users={users.data.items.map((line) => usedOf(`${line.user} · ${line.agent}`, line))} measure={measure} />
        : <Pending query={days.error ? days : users} />}
    </>
  );
}

function Shown({ days, users, measure }: { days: Used[]; users: Used[]; measure: Measure }) {
  const { say } = useTexts();
  const total = (name: Measure) => days.reduce((sum, day) => sum + day[name], 0);
  return (
    <>
      <Totals>{MEASURES.map((name) => [say(`usage.${name}`), total(name)])}</Totals>
      <UsageChart days={days} measure={measure} />
      <UsageTable label={say('usage.users')} head={say('usage.user')} lines={users} />
    </>
  );
}
