/** A tool call: folded, with its arguments and what came of it. One that waits for consent is open. */
import { ChevronRight, Wrench } from 'lucide-react';
import { Outcome, State, TakeBack } from '../approvals/ApprovalCard';
import { useApproval } from '../approvals/news';
import type { Schemas } from '../api/client';
import { TextOrValues, TimeLeft, Values } from '../parts/parts';
import { useTexts } from '../texts/texts';

export interface Result {
  result: Schemas['ToolResult'];
  at: string;
}

export function ToolCard({ call, at, found, progress }: {
  call: Schemas['ToolCall'];
  at: string;
  found: Result | undefined;
  progress: string | undefined;
}) {
  const { say } = useTexts();
  const status = found?.result.status;
  const seconds = found ? Math.max(0, Date.parse(found.at) - Date.parse(at)) / 1000 : undefined;
  const approval = status === 'awaiting_approval' ? found?.result.approval : undefined;
  return (
    <div className="tool">
      <details>
        <summary>
          <ChevronRight className="chevron" size={16} /><Wrench size={16} /><span className="grow"><b>{call.tool ?? call.name}</b>{call.server && <span className="muted"> · {call.server}</span>}</span>
          {seconds !== undefined && status !== 'awaiting_approval' && <span className="muted">{say('seconds', { seconds: seconds.toFixed(1) })}</span>}
          {approval ? <Standing id={approval} /> : <span className={`state ${status ?? 'running'}`}>{status ? say(`call.${status}`) : progress || say('call.running')}</span>}
        </summary>
        <h4>{say('arguments')}</h4>
        <Values value={call.arguments} />
        {found && !approval && <><h4>{say('result')}</h4><TextOrValues text={found.result.text} /></>}
      </details>
      {approval && <Waiting id={approval} />}
    </div>
  );
}

function Standing({ id }: { id: string }) {
  const { say } = useTexts();
  const view = useApproval(id);
  return view && view.state !== 'pending' ? <State state={view.state} /> : <span className="state awaiting_approval">{say('call.awaiting_approval')}</span>;
}

/** The request that a call waits for, as it stands now. */
function Waiting({ id }: { id: string }) {
  const { say } = useTexts();
  const view = useApproval(id);
  if (!view) return null;
  return (
    <section className={`waiting${view.state === 'pending' ? '' : ' done'}`} aria-label={`${view.code}: ${view.tool}`}>
      <p className="line"><code className="code">{view.code}</code> {view.state === 'pending' && <TimeLeft until={view.expires_at} />}</p>
      {view.state === 'pending' && <p>{say('approval.waits', { approvers: view.approvers.join(', ') })}</p>}
      {view.state === 'pending' && view.arguments != null && <Values value={view.arguments} />}
      <Outcome view={view} />
      {view.state === 'pending' && <TakeBack view={view} />}
    </section>
  );
}
