import { Button, Code, Heading, Strong, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../api/client';
import { get } from '../../api/queries';
import { Notice, Pending } from '../../parts/parts';
import { useTexts } from '../../texts/texts';
import { AgentChoice } from '../agents/AgentChoice';
import { Cell, Row, RowHead, Table } from '../Table';

type Cell = Schemas['AccessCell'];
type Holder = Schemas['AccessHolder'];

const COLOURS = { allow: 'green', approve: 'amber', confirm: 'amber', deny: 'gray' } as const;

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
      <Notice tone="plain" role="status">{chosen ? <><Strong>{chosen.title}</Strong> <Reason cell={chosen.cell} /></> : say('access.help')}</Notice>
      {matrix.data.unseen_claim && <Notice tone="wait">{say('access.unseen', { claim: matrix.data.unseen_claim })}</Notice>}
      {matrix.data.servers.map((server) => (
        <section key={server.server} aria-label={server.server}>
          <Heading as="h2" size="4">{server.server}</Heading>
          {server.unlisted && <Notice tone="wait">{server.unlisted.remedy}</Notice>}
          {server.tools.length > 0 && (
            <Table className="matrix" label={server.server} heads={[say('audit.tool'), ...names]}>
              {server.tools.map((row) => (
                <Row key={row.tool}>
                  <RowHead><Code variant="ghost">{row.tool}</Code></RowHead>
                  {row.cells.map((cell, at) => (
                    <Cell key={names[at]}>
                      <Button
                        type="button" size="1" variant="soft" color={COLOURS[cell.decision]} aria-label={`${row.tool}, ${names[at]}: ${say(`access.${cell.decision}`)}`}
                        onClick={() => setChosen({ title: `${row.tool}, ${names[at]}:`, cell })}
                      >{say(`access.${cell.decision}`)}</Button>
                    </Cell>
                  ))}
                </Row>
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
  if (cell.decision === 'deny') return <>{say(`denial.${cell.reason}`)} <Text color="gray">({cell.remedy})</Text></>;
  if (cell.decision === 'confirm') return <>{say('connection.confirmation')}</>;
  if (cell.decision === 'approve') return <>{say('connection.approval', { approvers: cell.approvers.join(', ') })}</>;
  return <>{say('access.allow.why')}</>;
}
