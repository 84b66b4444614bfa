import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../api/client';
import { get } from '../../api/queries';
import { Pending } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { Table } from '../Table';

/** Why can this user not see a tool? By the claims of their newest token. */
export function WhyNot({ user }: { user: string }) {
  const { say } = useTexts();
  const agents = useQuery(get('/v1/agents'));
  const [chosen, setChosen] = useState('');
  const [words, setWords] = useState('');
  const agent = chosen || agents.data?.items[0]?.id;
  return (
    <section aria-label={say('why')}>
      <h2>{say('why')}</h2>
      <div className="filters">
        <label>{say('approval.agent')}
          <select value={agent} onChange={(event) => setChosen(event.target.value)}>
            {agents.data?.items.map((item) => <option key={item.id} value={item.id}>{item.display_name}</option>)}
          </select>
        </label>
        <label>{say('audit.tool')}<input type="search" value={words} onChange={(event) => setWords(event.target.value)} /></label>
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
      {lines.map(({ server, tool, denied, approvers, unlisted }) => (
        <tr key={`${server} ${tool}`}>
          <td>{server}</td>
          <th scope="row"><code>{tool}</code></th>
          <td>{tool && <span className={`state ${denied ? 'deny' : approvers ? 'approve' : 'allow'}`}>{say(denied ? 'access.deny' : approvers ? 'access.approve' : 'access.allow')}</span>}</td>
          <td>
            {denied && <>{say(`denial.${denied.reason}`)} <span className="muted">({denied.remedy})</span></>}
            {approvers && say('connection.approval', { approvers: approvers.join(', ') })}
            {unlisted?.remedy}
          </td>
        </tr>
      ))}
    </Table>
  );
}

interface Line {
  server: string;
  tool: string;
  denied?: Schemas['DeniedTool'];
  approvers?: string[] | undefined;
  unlisted?: Schemas['Unlisted'];
}

interface ServerTools {
  server: string;
  tools: Schemas['ToolView'][];
  denied?: Schemas['DeniedTool'][] | null;
  unlisted?: Schemas['Unlisted'] | null;
}

function linesOf(server: ServerTools): Line[] {
  const may = server.tools.map((tool): Line => ({ server: server.server, tool: tool.tool, approvers: tool.needs_approval_by ?? undefined }));
  const not = (server.denied ?? []).map((denied): Line => ({ server: server.server, tool: denied.tool, denied }));
  return [...may, ...not, ...(server.unlisted ? [{ server: server.server, tool: '', unlisted: server.unlisted }] : [])];
}
