/** A tool call: folded, with its arguments and what came of it. One that waits for consent is open. */
import { ChevronRight, Wrench } from 'lucide-react';
import { Outcome, State, TakeBack } from '../approvals/ApprovalCard';
import { useApproval } from '../approvals/news';
import { TextOrValues, TimeLeft, Values } from '../parts/parts';
import { useTexts } from '../texts/texts';
import type { CallView } from './messages';

export function ToolCard({ call, at, result, progress }: CallView) {
  const { say } = useTexts();
  const status = result?.value.status;
  const seconds = result ? Math.max(0, Date.parse(result.at) - Date.parse(at)) / 1000 : undefined;
  const approval = status === 'awaiting_approval' ? result?.value.approval : undefined;
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
        {result && !approval && <><h4>{say('result')}</h4><TextOrValues text={result.value.text} /></>}
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
