import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../api/client';
import { get } from '../../api/queries';
import { Pending } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { AgentChoice } from '../agents/AgentChoice';
import { Table } from '../Table';

type Cell = Schemas['AccessCell'];
type Holder = Schemas['AccessHolder'];

/** Which role may use which tool of an agent, and why. */
export function AccessPage({ item }: { item: string }) {
  return <AgentChoice part="access" agent={item}>{(agent) => <Matrix key={agent} agent={agent} />}</AgentChoice>;
}

function Matrix({ agent }: { agent: string }) {
  const { say } = useTexts();
  const matrix = useQuery(get('/v1/admin/agents/{agent}/access', { path: { agent } }));
  const [chosen, setChosen] = useState<{ title: string; cell: Cell }>();
  if (!matrix.data) return <Pending query={matrix} />;
  const nameOf = (holder: Holder) => (holder.kind === 'role' ? holder.role : say(`access.${holder.kind}`));
  const names = matrix.data.holders.map(nameOf);
  return (
    <>
      <p role="status" className="card">{chosen ? <><b>{chosen.title}</b> <Reason cell={chosen.cell} /></> : say('access.help')}</p>
      {matrix.data.servers.map((server) => (
        <section key={server.server} aria-label={server.server}>
          <h2>{server.server}</h2>
          {server.unlisted && <p className="reason">{server.unlisted.remedy}</p>}
          {server.tools.length > 0 && (
            <Table className="matrix" label={server.server} heads={[say('audit.tool'), ...names]}>
              {server.tools.map((row) => (
                <tr key={row.tool}>
                  <th scope="row"><code>{row.tool}</code></th>
                  {row.cells.map((cell, at) => (
                    <td key={names[at]}>
                      <button
                        type="button" className={`quiet state ${cell.decision}`} aria-label={`${row.tool}, ${names[at]}: ${say(`access.${cell.decision}`)}`}
                        onClick={() => setChosen({ title: `${row.tool}, ${names[at]}:`, cell })}
                      >{say(`access.${cell.decision}`)}</button>
                    </td>
                  ))}
                </tr>
              ))}
            </Table>
          )}
        </section>
      ))}
    </>
  );
}

function Reason({ cell }: { cell: Cell }) {
  const { say } = useTexts();
  if (cell.decision === 'deny') return <>{say(`denial.${cell.reason}`)} <span className="muted">({cell.remedy})</span></>;
  if (cell.decision === 'approve') return <>{say('connection.approval', { approvers: cell.approvers.join(', ') })}</>;
  return <>{say('access.allow.why')}</>;
}
