/** A tool call: folded, with its arguments and what came of it. One that waits for consent is open. */
import { Card, Code, Flex, Heading, Text } from '@radix-ui/themes';
import { ChevronRight, Wrench } from 'lucide-react';
import { Outcome, State, TakeBack } from '../approvals/Outcome';
import { useApproval } from '../approvals/news';
import { StateBadge, TextOrValues, TimeLeft, Values } from '../parts/parts';
import { useTexts } from '../texts/texts';
import type { CallView } from './messages';

export function ToolCard({ call, at, result, progress, isTyped }: CallView) {
  const { say } = useTexts();
  const status = result?.value.status;
  const seconds = result ? Math.max(0, Date.parse(result.at) - Date.parse(at)) / 1000 : undefined;
  const approval = status === 'awaiting_approval' ? result?.value.approval : undefined;
  return (
    <Card size="1" className="tool">
      <details>
        <summary>
          <ChevronRight className="chevron" size={16} /><Wrench size={16} /><span className="grow"><b>{call.tool ?? call.name}</b>{call.server && <Text color="gray"> · {call.server}</Text>}</span>
          {seconds !== undefined && status !== 'awaiting_approval' && <Text size="2" color="gray">{say('seconds', { seconds: seconds.toFixed(1) })}</Text>}
          {approval ? <Standing id={approval} /> : <StateBadge state={status ?? 'running'}>{status ? say(`call.${status}`) : progress || say('call.running')}</StateBadge>}
        </summary>
        <Heading as="h4" size="1" color="gray">{say('arguments')}</Heading>
        <Values value={call.arguments} />
        {result && !approval && !isTyped && <><Heading as="h4" size="1" color="gray">{say('result')}</Heading><TextOrValues text={result.value.text} /></>}
      </details>
      {approval && <Waiting id={approval} />}
    </Card>
  );
}

function Standing({ id }: { id: string }) {
  const { say } = useTexts();
  const { data: view } = useApproval(id);
  return view && view.state !== 'pending' ? <State state={view.state} /> : <StateBadge state="awaiting_approval">{say('call.awaiting_approval')}</StateBadge>;
}

/** The request that a call waits for, as it stands now. */
function Waiting({ id }: { id: string }) {
  const { say } = useTexts();
  const { data: view } = useApproval(id);
  if (!view) return null;
  return (
    <section className={`waiting${view.state === 'pending' ? '' : ' done'}`} aria-label={`${view.code}: ${view.tool}`}>
      <Flex align="center" gap="2"><Code className="code" variant="ghost" size="4" weight="bold">{view.code}</Code> {view.state === 'pending' && <TimeLeft until={view.expires_at} />}</Flex>
      {view.state === 'pending' && <p>{say('approval.waits', { approvers: view.approvers.join(', ') })}</p>}
      {view.state === 'pending' && view.arguments != null && <Values value={view.arguments} />}
      <Outcome view={view} />
      {view.state === 'pending' && <TakeBack view={view} />}
    </section>
  );
}
