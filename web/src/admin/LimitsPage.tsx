import { useQuery } from '@tanstack/react-query';
import { get } from '../api/queries';
import { Pending } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { Cell, NumberCell, NumberHead, Row, RowHead, Table } from './Table';

const COLUMNS = ['limits.tenant', 'limits.used', 'limits.user'] as const;
const KINDS = ['conversations', 'guest_conversations', 'runs', 'approval_arguments', 'call_arguments', 'audit'] as const;

/** What this organisation may use in a day, what it has used, and how long its things are kept. The operator sets both. */
export function LimitsPage() {
  const { say } = useTexts();
  const tenant = useQuery(get('/v1/admin/tenant'));
  if (!tenant.data) return <Pending query={tenant} />;
  const { in_force: limits, used_today: used, retention_in_force: days } = tenant.data;
  const number = (value: number | null | undefined) => value ?? say('limits.none');
  return (
    <>
      <Table label={say('limits.day')} heads={[say('limits.day'), ...COLUMNS.map((name) => <NumberHead key={name}>{say(name)}</NumberHead>)]}>
        <Row>
          <RowHead>{say('usage.runs')}</RowHead>
          <NumberCell>{number(limits.runs_per_tenant)}</NumberCell>
          <NumberCell>{number(used?.runs ?? 0)}</NumberCell>
          <NumberCell>{number(limits.runs_per_user)}</NumberCell>
        </Row>
        <Row>
          <RowHead>{say('usage.tokens')}</RowHead>
          <NumberCell>{number(limits.tokens_per_tenant)}</NumberCell>
          <NumberCell>{number(used?.tokens ?? 0)}</NumberCell>
          <NumberCell>{number(limits.tokens_per_user)}</NumberCell>
        </Row>
      </Table>
      <Table label={say('limits.kept')} heads={[say('limits.kept'), say('limits.for')]}>
        {KINDS.map((kind) => (
          <Row key={kind}>
            <RowHead>{say(`limits.${kind}`)}</RowHead>
            <Cell>{days[kind] == null ? say(kind === 'call_arguments' ? 'limits.never' : 'limits.ever') : say('usage.days', { count: days[kind] })}</Cell>
          </Row>
        ))}
      </Table>
    </>
  );
}
