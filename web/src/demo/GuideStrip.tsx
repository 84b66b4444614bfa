/** A minute with the demo: four steps, each one click and one line. */
import { Code, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { Check, X } from 'lucide-react';
import { queries, get } from '../api/queries';
import { beginConversation } from '../chat/beginConversation';
import { keepMessage } from '../chat/keptMessage';
import { toChat } from '../links';
import { CopyButton } from '../parts/CopyButton';
import { IconAction } from '../parts/IconAction';
import { Failure } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useSession } from '../signin/session';
import { useTexts } from '../texts/texts';
import { changeGuide, closeGuide, type Step, STEPS, useGuide } from './guide';

/** The server of the demo that wants a token of each user. */
const NOTES = 'notes';

export function GuideStrip() {
  const { say } = useTexts();
  const { demo } = useSession();
  const navigate = useNavigate();
  const { done, current, conversation } = useGuide();
  const { isBusy, error, run } = useAction();
  /** In the conversation of the minute, which the first words begin. */
  const tell = async (text: string) => {
    const isThere = conversation !== '' && (await queries.fetchQuery(get('/v1/conversations/{id}', { path: { id: conversation } })).then(() => true, () => false));
    if (isThere) {
      keepMessage(conversation, text);
      return navigate(toChat(conversation));
    }
    const agent = (await queries.fetchQuery(get('/v1/agents'))).items[0]?.id ?? '';
    const begun = await beginConversation(agent, text);
    changeGuide({ conversation: begun });
    return navigate(toChat(begun));
  };
  const DO: Record<Step, () => Promise<unknown>> = {
    ask: () => tell(say('guide.ask.words')),
    pay: () => tell(say('guide.pay.words')),
    approve: async () => changeGuide({ hasPane: true }),
    connect: () => tell(`/connect ${NOTES}`),
  };
  const take = (step: Step) => run(async () => {
    await DO[step]();
    changeGuide({ current: step, done: [...new Set([...done, step])] });
  });
  const own = useQuery({ ...get('/v1/approvals', { query: { role: 'requester' } }), enabled: done.includes('approve') });
  const isDecided = own.data?.items.every(({ state }) => state !== 'pending') ?? false;
  const hasDone = (step: Step) => done.includes(step) && (step !== 'approve' || isDecided);
  const next = STEPS.find((step) => !hasDone(step));
  const line = current === 'approve' && isDecided ? 'guide.approve.done' : current ? `guide.${current}.line` as const : 'guide.line';
  const token = demo.notes.finance;
  return (
    <section className="guide" aria-label={say('guide')}>
      <ol>
        {STEPS.map((step, at) => {
          const isDone = hasDone(step);
          return (
            <li key={step}>
              <button type="button" className="step rt-reset" disabled={isBusy} data-next={step === next || undefined} aria-current={step === current ? 'step' : undefined} onClick={() => void take(step)}>
                <span className="sign" aria-hidden>{isDone ? <Check size={14} /> : at + 1}</span>
                <span className="what">{say(`guide.${step}`)}{isDone && <span className="sr-only"> ({say('guide.done')})</span>}</span>
              </button>
            </li>
          );
        })}
      </ol>
      <Text as="p" size="2" color="gray" className="line" role="status">
        {say(line)}
        {current === 'connect' && token && <> <Code variant="soft">{token}</Code><CopyButton text={() => token} /></>}
      </Text>
      <IconAction label={say('guide.close')} onClick={closeGuide}><X size={16} /></IconAction>
      <Failure error={error} />
    </section>
  );
}
