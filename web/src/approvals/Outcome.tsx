/** How a request stands, in the queue and in the conversation. */
import { api, read } from '../api/client';
import { withoutMark } from '../parts/Outcomes';
import { Failure, Moment, StateBadge } from '../parts/parts';
import { PlainButton } from '../parts/PlainButton';
import { useAction } from '../parts/useAction';
import { type Say, type TextKey, useTexts } from '../texts/texts';
import { type Approval, keepApproval } from './news';
import { useSettled } from './settled';

export function State({ kind = 'approval', ...view }: Standing & Partial<Pick<Approval, 'kind'>>) {
  const { say } = useTexts();
  const { state } = view;
  const isConfirmed = kind === 'confirmation' && (state === 'approved' || state === 'rejected');
  const words = say(isConfirmed ? `confirmation.${state}` : `approval.${state}` satisfies TextKey);
  return <StateBadge state={state}>{needsOf(view, say) || words}</StateBadge>;
}

/** A message of before has no numbers. */
type Standing = Pick<Approval, 'state'> & Partial<Pick<Approval, 'min_approvals' | 'approvals'>>;

/** How many people a request needs, where one is not enough. */
export const needsOf = ({ state, min_approvals: needed = 1, approvals: given = 0 }: Standing, say: Say) => (
  state === 'pending' && needed > 1 ? say('approval.needs', { needed, given }) : ''
);

export function Outcome({ view }: { view: Approval }) {
  const { say } = useTexts();
  if (view.state === 'pending' && view.votes.length === 0) return null;
  // A single vote is in the text.
  const hasVotes = view.state === 'pending' || view.votes.length > 1;
  return (
    <div className="outcome">
      {/* What waits is told around this already. */}
      {view.state !== 'pending' && <p>{withoutMark(view.text)}</p>}
      {view.reason && !view.text.includes(view.reason) && <p>{say('approval.reason')}: <q>{view.reason}</q></p>}
      {hasVotes && (
        <ul>{view.votes.map((vote) => (
          <li key={vote.by}>{vote.by}: {say(`decision.${vote.decision}`)}{vote.reason && <> – <q>{vote.reason}</q></>}, <Moment at={vote.at} />{vote.counts === false && <> – {say('decision.void')}</>}</li>
        ))}</ul>
      )}
    </div>
  );
}

export function TakeBack({ view }: { view: Approval }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const { ref, isSettled, guard } = useSettled<HTMLDivElement>();
  const cancel = () => run(async () => keepApproval(await read(api.POST('/v1/approvals/{id}/cancel', { params: { path: { id: view.id } } }))));
  return (
    <div ref={ref} {...guard}>
      <PlainButton disabled={isBusy} aria-disabled={!isSettled || undefined} onClick={() => void cancel()}>{say('approval.cancel')}</PlainButton>
      <Failure error={error} />
    </div>
  );
}
