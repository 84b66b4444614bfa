/** What decides about a request: its arguments are those that the decider has seen. */
import { Button, Code, Flex, Heading, Text } from '@radix-ui/themes';
import { Check, X } from 'lucide-react';
import { useState } from 'react';
import { api, read } from '../api/client';
import { invalidate } from '../api/queries';
import { TextEntry } from '../parts/Field';
import { Failure, TimeLeft, useSecondsLeft, Values } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { type Approval, keepApproval } from './news';
import { useSettled } from './settled';

/** In the queue. Somebody else may want to know why. */
export function Decision({ view }: { view: Approval }) {
  const { say } = useTexts();
  const [reason, setReason] = useState('');
  const isConfirmation = view.kind === 'confirmation';
  return (
    <form className="decision" onSubmit={(event) => event.preventDefault()}>
      {!isConfirmation && <TextEntry label={`${say('approval.reason')} ${say('optional')}`} value={reason} maxLength={1000} onChange={setReason} />}
      <Buttons view={view} reason={reason.trim() || null} />
    </form>
  );
}

/** In the conversation: the user is asked whether their own call is to be made, with exactly the arguments that are sent. */
export function Confirmation({ view }: { view: Approval }) {
  const { say } = useTexts();
  const title = `question-${view.id}`;
  return (
    <section className="waiting confirmation" aria-labelledby={title}>
      <Flex align="center" gap="2"><Code className="code" variant="ghost" size="4" weight="bold">{view.code}</Code> <TimeLeft until={view.expires_at} /></Flex>
      <Heading as="h4" size="3" id={title} role="alert">{say('confirm.question', { tool: view.tool, server: view.server })}</Heading>
      {view.obstacle ? <Text as="p" color="amber">{view.obstacle}</Text> : <div className="figures"><Values value={view.arguments} amounts={view.amounts} /></div>}
      {view.decidable && <Buttons view={view} reason={null} />}
    </section>
  );
}

function Buttons({ view, reason }: { view: Approval; reason: string | null }) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const isOver = useSecondsLeft(view.expires_at) <= 0;
  const { ref, isSettled, guard } = useSettled<HTMLDivElement>();
  const button = { type: 'button', disabled: isBusy || isOver, 'aria-disabled': !isSettled || undefined } as const;
  const decide = (decision: 'approve' | 'reject') => run(async () => {
    const body = { decision, id: view.id, args_sha256: view.args_sha256, reason };
    // The buttons go away: who works with the keyboard stays at the call.
    const call = ref.current?.closest('.tool')?.querySelector('summary');
    try {
      await keepApproval(await read(api.POST('/v1/approvals/{id}/decision', { params: { path: { id: view.id } }, body })));
      call?.focus();
    } catch (failure) {
      // Somebody else may have been faster, or the same person elsewhere: show how it stands.
      void invalidate('/v1/approvals/{id}', { path: { id: view.id } });
      throw failure;
    }
  });
  const isConfirmation = view.kind === 'confirmation';
  const isLast = view.min_approvals > 1 && view.approvals + 1 >= view.min_approvals;
  return (
    <>
      {isLast && !view.obstacle && <p>{say('approval.last')}</p>}
      <Flex gap="2" wrap="wrap" ref={ref} {...guard}>
        {!view.obstacle && <Button {...button} onClick={() => void decide('approve')}><Check size={16} /> {say(isConfirmation ? 'confirm' : 'approve')}</Button>}
        <Button {...button} variant="soft" color="red" onClick={() => void decide('reject')}><X size={16} /> {say(isConfirmation ? 'decline' : 'reject')}</Button>
      </Flex>
      <Failure error={error} />
    </>
  );
}
