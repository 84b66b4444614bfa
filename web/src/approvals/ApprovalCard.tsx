/** A request for consent: who asks for what, with exactly the arguments that run. */
import { Code, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import type { Schemas } from '../api/client';
import { get } from '../api/queries';
import { type Called, CallSentence, sentenceOf } from '../parts/CallSentence';
import { PageLink } from '../parts/PageLink';
import { Panel } from '../parts/Panel';
import { Facts, Failure, Moment, TimeLeft, Values } from '../parts/parts';
import { useTexts } from '../texts/texts';
import { toChat } from '../links';
import { Decision } from './Decision';
import { type Approval, useApproval } from './news';
import { Outcome, State, TakeBack } from './Outcome';

/**
 * In the queue. Heading and sentence are ours: nothing that the server says of itself stands in them. Every argument is
 * seen at once, in the heading or below it.
 */
export function ApprovalCard({ id, listed }: { id: string; listed?: Approval | undefined }) {
  const { say } = useTexts();
  const { data: view, error, isPlaceholderData } = useApproval(id, listed);
  if (!view) return <Failure error={error} />;
  const { pieces, rest } = sentenceOf(view as Called);
  return (
    <Panel>
      <article aria-label={`${view.code}: ${view.server} ${view.tool}`}>
        <header>
          <Heading as="h3" size="5" className="call"><CallSentence {...(view as Called)} /></Heading>
          <State {...view} />
          {view.state === 'pending' && <TimeLeft until={view.expires_at} />}
        </header>
        <p>{say(view.own ? 'approval.asks.own' : 'approval.asks', { name: view.requester.name, tool: view.tool, server: view.server, code: view.code, agent: view.agent })}</p>
        {view.own && view.conversation_id && <p><Conversation id={view.conversation_id} /></p>}
        {view.arguments === undefined && isPlaceholderData && <Text as="p" className="loading" color="gray">{say('loading')}</Text>}
        {Object.keys(rest).length > 0 && <div className="figures"><Values value={rest} amounts={view.amounts} /></div>}
        {pieces.length > 1 && <details><summary>{say('arguments.exact')}</summary><Values value={view.arguments} amounts={view.amounts} /></details>}
        <Details view={view} />
        <Outcome view={view} />
        {view.obstacle && <Text as="p" color="amber">{view.obstacle}</Text>}
        {view.decidable && view.state === 'pending' && (view.arguments != null || view.obstacle) && <Decision view={view} />}
        {view.own && view.state === 'pending' && !(view.kind === 'confirmation' && view.decidable) && <TakeBack view={view} />}
      </article>
    </Panel>
  );
}

/** The own conversation in which it was asked for, by its title. */
function Conversation({ id }: { id: string }) {
  const { say } = useTexts();
  const { data } = useQuery(get('/v1/conversations/{id}', { path: { id } }));
  return <PageLink {...toChat(id)}>{data?.title ? say('approval.conversation.of', { title: data.title }) : say('approval.conversation')}</PageLink>;
}

function Details({ view }: { view: Approval }) {
  const { say, either } = useTexts();
  return (
    <details>
      <summary>{say('details')}</summary>
      <ServerWords says={view.server_says} />
      <Facts>{[
        [say('approval.asker'), <span>{view.requester.name} <Code variant="ghost">{view.requester.user}</Code></span>],
        [say('approval.agent'), view.agent],
        [say('approval.approvers'), view.kind === 'confirmation' ? view.requester.name : <>{either(view.approvers)}{view.min_approvals > 1 && ` (${view.approvals}/${view.min_approvals})`}</>],
        [say('approval.created'), <Moment at={view.created_at} />],
        [say('approval.expires'), <Moment at={view.expires_at} />],
        ['SHA-256', <Code variant="ghost">{view.args_sha256}</Code>],
      ]}</Facts>
    </details>
  );
}

/** What the server says of its tool stands apart: nobody has checked it. */
function ServerWords({ says }: { says: Schemas['ServerSays'] }) {
  const { say } = useTexts();
  const hints = Object.entries(says.hints ?? {}).map(([name, value]) => `${name}: ${String(value)}`);
  const words = [says.title, hints.join(', '), says.description].filter(Boolean);
  if (words.length === 0) return null;
  return (
    <figure className="untrusted">
      <figcaption>{say('approval.untrusted')}</figcaption>
      {words.map((text, at) => <blockquote key={at}>{text}</blockquote>)}
    </figure>
  );
}
