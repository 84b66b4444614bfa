/** A tool call: folded, with its arguments and what came of it. One that waits for consent is open. */
import { Card, Code, Flex, Heading, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { ChevronRight, ListChecks, Wrench } from 'lucide-react';
import type { ReactNode } from 'react';
import { get } from '../api/queries';
import { Confirmation } from '../approvals/Decision';
import { needsOf, Outcome, State, TakeBack } from '../approvals/Outcome';
import { type Approval, useApproval } from '../approvals/news';
import { CallSentence } from '../parts/CallSentence';
import { StateBadge, TimeLeft, Values } from '../parts/parts';
import { ResultView } from '../parts/ResultView';
import { useTexts } from '../texts/texts';
import type { CallView } from './messages';
import { useAgent } from './useAgent';

/** Calls that follow one another without a word between them. What waits for somebody is never folded away with others. */
export function Calls({ calls }: { calls: CallView[] }) {
  const isQuiet = ({ result }: CallView) => !result || !/^awaiting/.test(result.value.status);
  const quiet = calls.filter(isQuiet);
  const isMany = quiet.length > 1;
  return (
    <>
      {isMany && <Steps calls={quiet} />}
      {(isMany ? calls.filter((call) => !isQuiet(call)) : calls).map((call) => <ToolCard key={call.call.call_id} {...call} />)}
    </>
  );
}

/** Several calls in one line, as long as nobody opens it. */
function Steps({ calls }: { calls: CallView[] }) {
  const { say } = useTexts();
  const seconds = calls.reduce((sum, call) => sum + (secondsOf(call) ?? 0), 0);
  const running = calls.find(({ result }) => !result);
  const failed = calls.find(({ result }) => result && result.value.status !== 'succeeded');
  return (
    <Card size="1" className="tool steps">
      <details>
        <summary>
          <ChevronRight className="chevron" size={16} /><ListChecks size={16} />
          <span className="grow"><b>{say('call.steps', { count: calls.length })}</b>{running && <Text color="gray"> · <Words {...running} /></Text>}</span>
          {!running && <Took seconds={seconds} />}
          {running ? <Badge call={running} /> : failed ? <Badge call={failed} /> : <StateBadge state="succeeded">{say('call.succeeded')}</StateBadge>}
        </summary>
        <div className="parts">{calls.map((call) => <ToolCard key={call.call.call_id} {...call} />)}</div>
      </details>
    </Card>
  );
}

function ToolCard(call: CallView) {
  const approval = call.result?.value.status === 'awaiting_approval' ? call.result.value.approval : undefined;
  return approval ? <Requested id={approval} {...call} /> : <Made {...call} />;
}

function Made(call: CallView) {
  const { say } = useTexts();
  const seconds = secondsOf(call);
  const { result, isTyped } = call;
  return (
    <Frame call={call} standing={<>{seconds !== undefined && <Took seconds={seconds} />}<Badge call={call} /></>}>
      {result && !isTyped && <><Heading as="h4" size="1" color="gray">{say('result')}</Heading><ResultView text={result.value.text} /></>}
    </Frame>
  );
}

/** A call that somebody has to consent to, as it stands now. */
function Requested({ id, ...call }: CallView & { id: string }) {
  const { say } = useTexts();
  const { data: view } = useApproval(id);
  const isOpen = !view || view.state === 'pending';
  const isAsked = view?.kind === 'confirmation' && isOpen;
  const standing = view && !isOpen ? <State {...view} /> : <StateBadge state="awaiting_approval">{say(isAsked ? 'call.awaiting_confirmation' : 'call.awaiting_approval')}</StateBadge>;
  return (
    <Frame call={call} standing={standing} exact={view?.arguments} amounts={view?.amounts} below={view && (isAsked ? <Confirmation view={view} /> : <Waiting view={view} />)}>
      {view && !isOpen && <Outcome view={view} />}
    </Frame>
  );
}

/** The line of a call, and what opens below it. */
function Frame({ call, standing, exact, amounts, below, children }: {
  call: CallView;
  standing: ReactNode;
  /** The arguments that run, where they are not those of the call itself. */
  exact?: unknown;
  /** Decimal numbers among them as the reader writes them. */
  amounts?: Record<string, string> | undefined;
  /** What is seen without being opened. */
  below?: ReactNode;
  children: ReactNode;
}) {
  const { say } = useTexts();
  const { server, tool, name, arguments: given } = call.call;
  return (
    <Card size="1" className="tool">
      <details>
        <summary>
          <ChevronRight className="chevron" size={16} /><Wrench size={16} />
          <span className="grow"><Words {...call} amounts={amounts} />{server && <Text color="gray"> · {server}</Text>}</span>
          {standing}
        </summary>
        <p><Code variant="ghost" color="gray">{server && `${server} · `}{tool ?? name}</Code></p>
        <Heading as="h4" size="1" color="gray">{say('arguments')}</Heading>
        <Values value={exact ?? given} amounts={amounts} />
        {children}
      </details>
      {below}
    </Card>
  );
}

function Words({ call, amounts }: CallView & { amounts?: Record<string, string> | undefined }) {
  const summary = useSummary(call.server, call.tool);
  return <span className="call"><CallSentence hasFirst tool={call.tool ?? call.name} summary={summary} arguments={call.arguments} amounts={amounts} /></span>;
}

/** What the pack says of a tool. It rarely changes. */
function useSummary(server: string | null | undefined, tool: string | null | undefined): string | null | undefined {
  const agent = useAgent();
  const { data } = useQuery({ ...get('/v1/agents/{agent}/tools', { path: { agent } }), enabled: agent !== '', staleTime: 600_000 });
  return data?.items.find((one) => one.server === server)?.tools.find((one) => one.tool === tool)?.summary;
}

function Badge({ call: { result, progress } }: { call: CallView }) {
  const { say } = useTexts();
  if (!result) return <StateBadge state="running">{progress || say('call.running')}</StateBadge>;
  const { status, refusal } = result.value;
  if (refusal === 'unfit_arguments') return <StateBadge state="unfit">{say('call.unfit')}</StateBadge>;
  return <StateBadge state={status}>{say(`call.${status}`)}</StateBadge>;
}

/** Nobody waited for what took less than a tenth of a second. */
function Took({ seconds }: { seconds: number }) {
  const { say } = useTexts();
  const rounded = Math.round(seconds * 10) / 10;
  return rounded > 0 && <Text size="2" color="gray">{say('seconds', { seconds: rounded })}</Text>;
}

function secondsOf({ at, result }: CallView): number | undefined {
  if (!result) return undefined;
  return (result.value.took_ms ?? Math.max(0, Date.parse(result.at) - Date.parse(at))) / 1000;
}

/** Who may consent, and how long. Of a request that is over only a reason is left to say: its state stands in the line above. */
function Waiting({ view }: { view: Approval }) {
  const { say, either } = useTexts();
  const isPending = view.state === 'pending';
  if (!isPending && !view.reason) return null;
  return (
    <section className={`waiting${isPending ? '' : ' done'}`} aria-label={`${view.code}: ${view.tool}`}>
      {isPending && <Flex align="center" gap="2"><Code className="code" variant="ghost" size="4" weight="bold">{view.code}</Code> <TimeLeft until={view.expires_at} /></Flex>}
      {isPending && <p>{say(view.min_approvals > 1 ? 'approval.waits.several' : 'approval.waits', { approvers: either(view.approvers), needs: needsOf(view, say) })}</p>}
      {isPending ? <Outcome view={view} /> : <p>{say('approval.reason')}: <q>{view.reason}</q></p>}
      {isPending && <TakeBack view={view} />}
    </section>
  );
}
