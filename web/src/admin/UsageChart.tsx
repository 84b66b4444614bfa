import { Card } from '@radix-ui/themes';
import { Bar, BarChart, CartesianGrid, ResponsiveContainer, Tooltip, XAxis, YAxis } from 'recharts';
import { Empty } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { type Measure, MEASURES, type Used } from './usage';
import { NumberCell, NumberHead, Row, RowHead, Table } from './Table';

/** One measure by day as a picture, and all of them as a table that opens. */
export default function UsageChart({ days, measure }: { days: Used[]; measure: Measure }) {
  const { say, language } = useTexts();
  return (
    <>
      <Card asChild>
        <figure className="chart" aria-label={say('usage.chart', { measure: say(`usage.${measure}`) })}>
          <ResponsiveContainer width="100%" height="100%">
            <BarChart data={days} margin={{ top: 4, right: 4, bottom: 0, left: 0 }}>
              <CartesianGrid vertical={false} stroke="var(--line)" />
              <XAxis dataKey="name" minTickGap={12} tickLine={false} stroke="var(--edge)" tickFormatter={(day: string) => day.slice(5)} />
              <YAxis width={48} tickLine={false} axisLine={false} allowDecimals={false} tickFormatter={(value: number) => Intl.NumberFormat(language, { notation: 'compact' }).format(value)} />
              <Tooltip cursor={{ fill: 'var(--hover)' }} contentStyle={{ background: 'var(--raised)', borderColor: 'var(--line)' }} formatter={(value) => [Number(value).toLocaleString(language), say(`usage.${measure}`)]} />
              <Bar dataKey={measure} fill="var(--accent)" radius={[3, 3, 0, 0]} isAnimationActive={false} maxBarSize={40} />
            </BarChart>
          </ResponsiveContainer>
        </figure>
      </Card>
      <details><summary>{say('usage.table')}</summary><UsageTable label={say('usage.table')} head={say('usage.day')} lines={days} /></details>
    </>
  );
}

export function UsageTable({ label, head, lines }: { label: string; head: string; lines: Used[] }) {
  const { say } = useTexts();
  if (lines.length === 0) return <Empty>{say('admin.none')}</Empty>;
  return (
    <Table label={label} heads={[head, ...MEASURES.map((name) => <NumberHead key={name}>{say(`usage.${name}`)}</NumberHead>)]}>
      {lines.map((line) => (
        <Row key={line.name}>
          <RowHead>{line.name}</RowHead>
          {MEASURES.map((name) => <NumberCell key={name}>{line[name]}</NumberCell>)}
        </Row>
      ))}
    </Table>
  );
}
