import { Code, Heading, Text, TextArea } from '@radix-ui/themes';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read, type Schemas } from '../../api/client';
import { pause, TYPING } from '../../api/queries';
import { Field } from '../../parts/Field';
import { Panel } from '../../parts/Panel';
import { Failure, Notice } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { Cell, Row, RowHead, Table } from '../Table';

type ScopeView = Schemas['ScopeView'];

/** What a run must bring, and what would be missing of a given scope. */
export function DryRun({ agent, servers }: { agent: string; servers: Schemas['List_ServerView']['items'] }) {
  const { say } = useTexts();
  const [text, setText] = useState('{}');
  const [given, setGiven] = useState('{}');
  const keys = allKeys(servers);
  if (keys.length === 0) return null;
  const scope = parse(text);
  const params = parse(given);
  const missing = keys.filter(({ key, required }) => required && scope?.[key] === undefined);
  return (
    <Panel>
      <section>
        <Heading as="h2" size="4">{say('dryrun')}</Heading>
        <Table label={say('dryrun')} heads={[say('server.key'), say('server.key.type'), say('server.key.required'), say('server.description')]}>
          {keys.map((view) => (
            <Row key={view.key}>
              <RowHead><Code variant="ghost">scope.{view.key}</Code></RowHead>
              <Cell>{view.type}</Cell>
              <Cell>{say(view.required ? 'yes' : 'no')}</Cell>
              <Cell>{view.description}</Cell>
            </Row>
          ))}
        </Table>
        <Field label={say('dryrun.scope')}><TextArea className="json" rows={4} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} /></Field>
        <Field label={say('dryrun.params')}><TextArea className="json" rows={2} spellCheck={false} value={given} onChange={(event) => setGiven(event.target.value)} /></Field>
        <Notice role="status" tone={scope && params && missing.length === 0 ? 'good' : 'wait'}>
          {!(scope && params) && say('server.json.wrong')}
          {scope && params && missing.length === 0 && say('dryrun.complete')}
          {scope && params && missing.length > 0 && say('dryrun.missing', { keys: missing.map(({ key }) => key).join(', ') })}
        </Notice>
        {scope && params && missing.length === 0 && <Check agent={agent} scope={scope} params={params} />}
      </section>
    </Panel>
  );
}

/** What the service says of such a run: it makes the checks of a start, and starts nothing. */
function Check({ agent, scope, params }: { agent: string; scope: Record<string, unknown>; params: Record<string, unknown> }) {
  const { say } = useTexts();
  const check = useQuery({
    queryKey: ['/v1/runs/check', agent, scope, params],
    queryFn: async ({ signal }) => {
      await pause(TYPING, signal);
      return read(api.POST('/v1/runs/check', { body: { agent_name: agent, prompt: '-', scope, params }, signal }));
    },
    placeholderData: keepPreviousData,
  });
  if (check.error) return <Failure error={check.error} retry={() => void check.refetch()} />;
  if (!check.data) return null;
  const { servers, not_connected: personal } = check.data;
  return (
    <Text as="p" size="2" color="gray">
      {servers.length > 0 ? say('dryrun.check', { servers: servers.join(', ') }) : say('dryrun.check.none')}
      {personal.length > 0 && <> {say('dryrun.check.personal', { servers: personal.join(', ') })}</>}
    </Text>
  );
}

/** Each key once; one server that requires it is enough. */
function allKeys(servers: Schemas['List_ServerView']['items']): ScopeView[] {
  const found = new Map<string, ScopeView>();
  for (const view of servers.flatMap((server) => server.scope ?? [])) {
    const before = found.get(view.key);
    found.set(view.key, { ...before, ...view, required: view.required || (before?.required ?? false) });
  }
  return [...found.values()];
}

function parse(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
