/** A request for consent: who asks for what, with exactly the arguments that run. */
import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { invalidate } from '../api/queries';
import { withoutMark } from '../parts/Outcomes';
import { Failure, Moment, TimeLeft, useSecondsLeft, Values } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts, type TextKey } from '../texts/texts';
import { toChat } from '../links';
import { type Approval, keepApproval, useApproval } from './news';

export function State({ state }: { state: Approval['state'] }) {
  const { say } = useTexts();
  return <span className={`state ${state}`}>{say(`approval.${state}` satisfies TextKey)}</span>;
}

/** In the queue. */
export function ApprovalCard({ id, listed }: { id: string; listed?: Approval | undefined }) {
  const { say } = useTexts();
  const view = useApproval(id, listed);
  if (!view) return null;
  return (
    <article className="card approval" aria-label={`${view.code}: ${view.server} ${view.tool}`}>
      <header>
        <h3>{view.server_says.title ?? view.server_says.hints?.title as string | undefined ?? view.tool}</h3>
        <State state={view.state} />
        {view.state === 'pending' && <TimeLeft until={view.expires_at} />}
      </header>
      <p>{say('approval.asks', { name: view.requester.name, tool: view.tool, server: view.server, code: view.code })}</p>
      <h4>{say('arguments')}</h4>
      {view.arguments == null ? <p className="loading">{say('loading')}</p> : <Values value={view.arguments} />}
      <details>
        <summary>{say('details')}</summary>
        <ServerWords says={view.server_says} />
        <dl className="facts">
          <div><dt>{say('approval.agent')}</dt><dd>{view.agent}</dd></div>
          <div><dt>{say('approval.approvers')}</dt><dd>{view.approvers.join(', ')}{view.min_approvals > 1 && ` (${view.votes.length}/${view.min_approvals})`}</dd></div>
          <div><dt>{say('approval.created')}</dt><dd><Moment at={view.created_at} /></dd></div>
          <div><dt>{say('approval.expires')}</dt><dd><Moment at={view.expires_at} /></dd></div>
          <div><dt>SHA-256</dt><dd><code>{view.args_sha256}</code></dd></div>
        </dl>
      </details>
      <Outcome view={view} />
      {view.decidable && view.state === 'pending' && view.arguments != null && <Decision view={view} />}
      {view.own && view.state === 'pending' && <TakeBack view={view} />}
      {view.own && view.conversation_id && <p><Link {...toChat(view.conversation_id)}>{say('approval.conversation')}</Link></p>}
    </article>
  );
}

/** What the server says of its tool stands apart: nobody has checked it. */
function ServerWords({ says }: { says: Schemas['ServerSays'] }) {
  const { say } = useTexts();
  if (!says.description) return null;
  return <figure className="untrusted"><figcaption>{say('approval.untrusted')}</figcaption><blockquote>{says.description}</blockquote></figure>;
}

export function Outcome({ view }: { view: Approval }) {
  const { say } = useTexts();
  if (view.state === 'pending' && view.votes.length === 0) return null;
  // A single vote is in the text.
  const hasVotes = view.state === 'pending' || view.votes.length > 1;
  return (
    <div className="outcome">
      <p>{withoutMark(view.text)}</p>
      {view.reason && !view.text.includes(view.reason) && <p>{say('approval.reason')}: <q>{view.reason}</q></p>}
      {hasVotes && (
        <ul>{view.votes.map((vote) => (
          <li key={vote.by}>{vote.by}: {say(`decision.${vote.decision}`)}{vote.reason && <> – <q>{vote.reason}</q></>}, <Moment at={vote.at} /></li>
        ))}</ul>
      )}
    </div>
  );
}

function Decision({ view }: { view: Approval }) {
  const { say } = useTexts();
  const [reason, setReason] = useState('');
  const { isBusy, error, run } = useAction();
  const isOver = useSecondsLeft(view.expires_at) <= 0;
  const decide = (decision: 'approve' | 'reject') => run(async () => {
    const body = { decision, args_sha256: view.args_sha256, reason: reason.trim() || null };
    try {
      await keepApproval(await read(api.POST('/v1/approvals/{id}/decision', { params: { path: { id: view.id } }, body })));
    } catch (failure) {
      // Somebody else may have been faster: show how it stands.
      void invalidate('/v1/approvals/{id}', { path: { id: view.id } });
      throw failure;
    }
  });
  return (
    <form className="decision" onSubmit={(event) => event.preventDefault()}>
      <label>{say('approval.reason')} {say('optional')}
        <input value={reason} maxLength={1000} onChange={(event) => setReason(event.target.value)} />
      </label>
      <div className="buttons">
        <button type="button" className="primary" disabled={isBusy || isOver} onClick={() => void decide('approve')}>{say('approve')}</button>
        <button type="button" className="danger" disabled={isBusy || isOver} onClick={() => void decide('reject')}>{say('reject')}</button>
      </div>
      <Failure error={error} />
    </form>
  );
}

export function TakeBack({ view }: { view: Approval }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const cancel = () => run(async () => keepApproval(await read(api.POST('/v1/approvals/{id}/cancel', { params: { path: { id: view.id } } }))));
  return (
    <div>
      <button type="button" disabled={isBusy} onClick={() => void cancel()}>{say('approval.cancel')}</button>
      <Failure error={error} />
    </div>
  );
}
