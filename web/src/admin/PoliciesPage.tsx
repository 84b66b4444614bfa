import { Button, Code, Text, TextArea } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { get } from '../api/queries';
import { ChoiceEntry, Field, TextEntry } from '../parts/Field';
import { Panel } from '../parts/Panel';
import { PlainButton } from '../parts/PlainButton';
import { Empty, Failure, Moment, Notice, Pending, StateBadge } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { AgentChoice } from './agents/AgentChoice';
import { Cell, Row, RowHead, Table } from './Table';

type Outcome = Schemas['Outcome'];
type Call = Schemas['TriedKeptCall'];

/** What colour a decision has. */
const STATES = { allow: 'succeeded', approve: 'pending', confirm: 'pending', refuse: 'failed', no_tool: 'failed', held: 'failed' } as const;

/** Tries rules with examples and with the calls that the tenant keeps. Nothing is called or changed. */
export function PoliciesPage({ item }: { item: string }) {
  return <AgentChoice part="policies" agent={item}>{(agent) => <Trial key={agent} agent={agent} />}</AgentChoice>;
}

function Trial({ agent }: { agent: string }) {
  const { say } = useTexts();
  const matrix = useQuery(get('/v1/admin/agents/{agent}/access', { path: { agent } }));
  const [chosen, setServer] = useState('');
  const [policy, setPolicy] = useState('');
  const [examples, setExamples] = useState('');
  const [days, setDays] = useState('30');
  const [result, setResult] = useState<Schemas['TrialResult']>();
  const [calls, setCalls] = useState<Call[]>([]);
  const { isBusy, error, run } = useAction();
  if (!matrix.data) return <Pending query={matrix} />;
  const servers = matrix.data.servers.map(({ server }) => server);
  const server = chosen || servers[0];
  const load = (cursor: string | null = null) => run(async () => {
    const body = { server: server ?? null, policy, examples, days: days ? Number(days) : null, cursor, limit: 100 };
    const next = await read(api.POST('/v1/admin/agents/{agent}/policy-trials', { params: { path: { agent } }, body }));
    setCalls((before) => (cursor ? [...before, ...next.calls] : next.calls));
    setResult(next);
  });
  return (
    <>
      <Panel>
        <form onSubmit={(event) => { event.preventDefault(); void load(); }}>
          <div className="filters">
            <ChoiceEntry label={say('policies.server')} value={server} onChange={setServer} options={servers.map((name) => [name, name] as const)} />
            <TextEntry label={say('policies.days')} type="number" min={1} max={366} value={days} onChange={setDays} />
          </div>
          <Field label={say('policies.rules')}><TextArea className="json" rows={10} spellCheck={false} value={policy} placeholder={'toolAccess:\n  default: users'} onChange={(event) => setPolicy(event.target.value)} /></Field>
          <Field label={say('policies.examples')}><TextArea className="json" rows={6} spellCheck={false} value={examples} placeholder={'server: …\nexamples:\n  - { tool: …, args: {}, expect: allow }'} onChange={(event) => setExamples(event.target.value)} /></Field>
          <Button type="submit" disabled={isBusy}>{say('policies.try')}</Button>
          <Failure error={error} />
        </form>
      </Panel>
      {result && result.kept_days == null && <Notice tone="wait" role="status">{say('policies.nothingKept')}</Notice>}
      {result?.limits_are_partial && <Notice tone="wait">{say('policies.partial')}</Notice>}
      {result && result.examples.length > 0 && (
        <Table label={say('policies.examples')} heads={[say('policies.line'), say('audit.tool'), say('policies.tried'), say('policies.expected')]}>
          {result.examples.map((one) => (
            <Row key={one.line}>
              <RowHead>{one.line}</RowHead>
              <Cell><Code variant="ghost">{one.server} {one.tool}</Code></Cell>
              <Cell><Decision of={one.outcome} /></Cell>
              <Cell>{say(one.is_expected ? 'yes' : 'no')}</Cell>
            </Row>
          ))}
        </Table>
      )}
      {result?.kept_days != null && calls.length === 0 && <Empty>{say('policies.none')}</Empty>}
      {calls.length > 0 && (
        <Table label={say('policies.calls')} heads={[say('audit.at'), say('admin.user'), say('audit.tool'), say('policies.arguments'), say('policies.inForce'), say('policies.tried')]}>
          {calls.map((call) => (
            <Row key={call.id}>
              <Cell><Moment at={call.at} /></Cell>
              <Cell>{call.user}</Cell>
              <Cell><Code variant="ghost">{call.server} {call.tool}</Code></Cell>
              <Cell><Code variant="ghost" className="value">{JSON.stringify(call.arguments)}</Code></Cell>
              <Cell><Decision of={call.in_force} /></Cell>
              <Cell><Decision of={call.tried} /></Cell>
            </Row>
          ))}
        </Table>
      )}
      {result?.next && <PlainButton disabled={isBusy} onClick={() => void load(result.next)}>{say('more')}</PlainButton>}
    </>
  );
}

/** What becomes of a call, by which rule. */
function Decision({ of }: { of: Outcome }) {
  const { say } = useTexts();
  const why = [of.approvers?.join(', '), of.reason, of.rule].filter(Boolean).join(' · ');
  return (
    <>
      <StateBadge state={STATES[of.decision]}>{say(`policies.${of.decision}`)}</StateBadge>
      {why && <Text as="p" size="1" color="gray">{why}</Text>}
    </>
  );
}
