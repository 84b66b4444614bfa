import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { Bar, BarChart, CartesianGrid, ResponsiveContainer, Tooltip, XAxis, YAxis } from 'recharts';
import { get } from '../api/queries';
import { Empty, Pending } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { NumberHead, Table } from './Table';

const PERIODS = [7, 14, 30] as const;
const MEASURES = ['tokens', 'runs', 'calls'] as const;
type Measure = (typeof MEASURES)[number];

interface Used {
  name: string;
  tokens: number;
  runs: number;
  calls: number;
}

/** What was used by day, and by user and agent. Days are UTC, as the limits count them. */
export default function UsagePage() {
  const { say } = useTexts();
  const [period, setPeriod] = useState<number>(7);
  const [measure, setMeasure] = useState<Measure>('tokens');
  const query = daysOf(period);
  const days = useQuery(get('/v1/admin/usage/days', { query }));
  const users = useQuery(get('/v1/admin/usage', { query: { ...query, limit: 1000 } }));
  return (
    <>
      <div className="filters">
        <label>{say('usage.period')}
          <select value={period} onChange={(event) => setPeriod(Number(event.target.value))}>
            {PERIODS.map((days) => <option key={days} value={days}>{say('usage.days', { count: days })}</option>)}
          </select>
        </label>
        <label>{say('usage.measure')}
          <select value={measure} onChange={(event) => setMeasure(event.target.value as Measure)}>
            {MEASURES.map((name) => <option key={name} value={name}>{say(`usage.${name}`)}</option>)}
          </select>
        </label>
      </div>
      {days.data && users.data
        ? <Shown days={days.data.items.map((line) => usedOf(line.day, line))} users={users.data.items.map((line) => usedOf(`${line.user} · ${line.agent}`, line))} measure={measure} />
        : <Pending query={days.error ? days : users} />}
    </>
  );
}

function Shown({ days, users, measure }: { days: Used[]; users: Used[]; measure: Measure }) {
  const { say, language } = useTexts();
  const number = (value: number) => value.toLocaleString(language);
  const total = (name: Measure) => days.reduce((sum, day) => sum + day[name], 0);
  return (
    <>
      <dl className="totals">
        {MEASURES.map((name) => <div key={name}><dt>{say(`usage.${name}`)}</dt><dd>{number(total(name))}</dd></div>)}
      </dl>
      <figure className="chart" aria-label={say('usage.chart', { measure: say(`usage.${measure}`) })}>
        <ResponsiveContainer width="100%" height="100%">
          <BarChart data={days} margin={{ top: 4, right: 4, bottom: 0, left: 0 }}>
            <CartesianGrid vertical={false} stroke="var(--line)" />
            <XAxis dataKey="name" tickLine={false} stroke="var(--edge)" tickFormatter={(day: string) => day.slice(5)} />
            <YAxis width={48} tickLine={false} axisLine={false} allowDecimals={false} tickFormatter={(value: number) => Intl.NumberFormat(language, { notation: 'compact' }).format(value)} />
            <Tooltip cursor={{ fill: 'var(--hover)' }} contentStyle={{ background: 'var(--raised)', borderColor: 'var(--line)' }} formatter={(value) => [number(Number(value)), say(`usage.${measure}`)]} />
            <Bar dataKey={measure} fill="var(--accent)" radius={[3, 3, 0, 0]} isAnimationActive={false} maxBarSize={40} />
          </BarChart>
        </ResponsiveContainer>
      </figure>
      <Numbers label={say('usage.users')} head={say('usage.user')} lines={users} />
      <details><summary>{say('usage.table')}</summary><Numbers label={say('usage.table')} head={say('usage.day')} lines={days} /></details>
    </>
  );
}

function Numbers({ label, head, lines }: { label: string; head: string; lines: Used[] }) {
  const { say, language } = useTexts();
  if (lines.length === 0) return <Empty>{say('admin.none')}</Empty>;
  return (
    <Table label={label} heads={[head, ...MEASURES.map((name) => <NumberHead key={name}>{say(`usage.${name}`)}</NumberHead>)]}>
      {lines.map((line) => (
        <tr key={line.name}>
          <th scope="row">{line.name}</th>
          {MEASURES.map((name) => <td key={name} className="number">{line[name].toLocaleString(language)}</td>)}
        </tr>
      ))}
    </Table>
  );
}

const DAY = 86_400_000;
const dayOf = (at: number) => new Date(at).toISOString().slice(0, 10);

/** So many days, with today as the last one. */
function daysOf(count: number) {
  const now = Date.now();
  return { since: dayOf(now - (count - 1) * DAY), until: dayOf(now + DAY) };
}

type Line = { runs: number; tool_calls: number; input_tokens: number; output_tokens: number };

const usedOf = (name: string, line: Line): Used => ({
  name, tokens: line.input_tokens + line.output_tokens, runs: line.runs, calls: line.tool_calls,
});
