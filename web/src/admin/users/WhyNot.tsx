import { Code, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../api/client';
import { get } from '../../api/queries';
import { ChoiceEntry, TextEntry } from '../../parts/Field';
import { Pending, StateBadge } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { Cell, Row, RowHead, Table } from '../Table';

/** Why can this user not see a tool? By the claims of their newest token. */
export function WhyNot({ user }: { user: string }) {
  const { say } = useTexts();
  const agents = useQuery(get('/v1/agents'));
  const [chosen, setChosen] = useState('');
  const [words, setWords] = useState('');
  const agent = chosen || agents.data?.items[0]?.id;
  return (
    <section aria-label={say('why')}>
      <Heading as="h2" size="4">{say('why')}</Heading>
      <div className="filters">
        <ChoiceEntry
          label={say('approval.agent')} value={agent} onChange={setChosen}
          options={agents.data?.items.map((item) => [item.id, item.display_name] as const) ?? []}
        />
        <TextEntry label={say('audit.tool')} type="search" value={words} onChange={setWords} />
      </div>
      {agent && <Reasons key={agent} user={user} agent={agent} words={words} />}
    </section>
  );
}

function Reasons({ user, agent, words }: { user: string; agent: string; words: string }) {
  const { say } = useTexts();
  const tools = useQuery(get('/v1/agents/{agent}/tools', { path: { agent }, query: { explain: true, user } }));
  if (!tools.data) return <Pending query={tools} />;
  const lines = tools.data.items.flatMap(linesOf).filter(({ server, tool }) => `${server} ${tool}`.includes(words.trim()));
  return (
    <Table label={say('why')} heads={[say('audit.server'), say('audit.tool'), say('why.may'), say('why.reason')]}>
      {lines.map(({ server, tool, denied, approvers, confirms, unlisted }) => (
        <Row key={`${server} ${tool}`}>
          <Cell>{server}</Cell>
          <RowHead><Code variant="ghost">{tool}</Code></RowHead>
          <Cell>{tool && <StateBadge state={denied ? 'deny' : approvers || confirms ? 'approve' : 'allow'}>{say(denied ? 'access.deny' : approvers ? 'access.approve' : confirms ? 'access.confirm' : 'access.allow')}</StateBadge>}</Cell>
          <Cell>
            {denied && <>{say(`denial.${denied.reason}`)} <Text color="gray">({denied.remedy})</Text></>}
            {approvers && say('connection.approval', { approvers: approvers.join(', ') })}
            {confirms && say('connection.confirmation')}
            {unlisted?.remedy}
          </Cell>
        </Row>
      ))}
    </Table>
  );
}

interface Line {
  server: string;
  tool: string;
  denied?: Schemas['DeniedTool'];
  approvers?: string[] | undefined;
  confirms?: boolean | undefined;
  unlisted?: Schemas['Unlisted'];
}

interface ServerTools {
  server: string;
  tools: Schemas['ToolView'][];
  denied?: Schemas['DeniedTool'][] | null;
  unlisted?: Schemas['Unlisted'] | null;
}

function linesOf(server: ServerTools): Line[] {
  const may = server.tools.map((tool): Line => ({ server: server.server, tool: tool.tool, approvers: tool.needs_approval_by ?? undefined, confirms: tool.needs_confirmation }));
  const not = (server.denied ?? []).map((denied): Line => ({ server: server.server, tool: denied.tool, denied }));
  return [...may, ...not, ...(server.unlisted ? [{ server: server.server, tool: '', unlisted: server.unlisted }] : [])];
}
