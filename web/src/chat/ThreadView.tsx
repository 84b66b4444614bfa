import { type AppendMessage, type AssistantClient, AuiConfig, AuiProvider, ExternalThread, ThreadPrimitive, useThreadViewport } from '@assistant-ui/react';
import { Spinner, Text } from '@radix-ui/themes';
import { useEffect, useMemo, useRef } from 'react';
import { invalidate } from '../api/queries';
import { PageLink } from '../parts/PageLink';
import { Empty, Failure, Loading, Notice } from '../parts/parts';
import { PlainButton } from '../parts/PlainButton';
import { useAction } from '../parts/useAction';
import { toChat } from '../links';
import { useTexts } from '../texts/texts';
import { branchAdapter } from './branches';
import { ApproverNotices } from './ApproverNotices';
import { Composer } from './Composer';
import { keepDraft } from './drafts';
import { onKeptMessage, takeMessage } from './keptMessage';
import { convertDrafts, convertMessages, findNewestAnswer, textOf } from './messages';
import { MessageView } from './MessageView';
import { PackMenu } from './PackMenu';
import { Question } from './Question';
import { openQuestion, type Thread } from './thread';
import { type OpenConversation, type Said, useConversation } from './useConversation';
import { Agent } from './useAgent';
import { useUploads } from './useUploads';

export function ThreadView({ id }: { id: string }) {
  const { say } = useTexts();
  const open = useConversation(id);
  if (open.isGone) return <div className="column"><Empty>{say('chat.gone')} <PageLink {...toChat()}>{say('chat.start')}</PageLink></Empty></div>;
  return <ThreadPrimitive.ViewportProvider><OpenThread id={id} open={open} /></ThreadPrimitive.ViewportProvider>;
}

/** The chat library shows what the conversation holds, and says what a person does. */
function OpenThread({ id, open }: { id: string; open: OpenConversation }) {
  const { thread } = open;
  const library = useRef<AssistantClient>(null);
  const scrollToEnd = useThreadViewport((viewport) => viewport.scrollToBottom);
  const [sending, change, uploads] = [useAction(), useAction(), useUploads(id)];
  const send = async (said: Said) => {
    await open.say(said);
    scrollToEnd({ behavior: 'instant' });
    void invalidate('/v1/conversations');
  };
  const sendComposed = async (message: AppendMessage) => {
    const attachments = message.attachments?.map((file) => file.id) ?? [];
    const text = textOf(message);
    const isDone = await sending.run(() => send({ ...(text && { text }), ...(attachments.length > 0 && { attachments }) }));
    settle(id, library.current?.composer, isDone ? undefined : message);
  };
  const replace = (replaces: string, text?: string) => void change.run(() => open.say({ replaces, ...(text && { text }) }));
  const latest = useRef(send);
  latest.current = send;
  const { run } = change;
  const isRunning = Object.keys(thread.active).length > 0;
  useEffect(() => {
    // What is said elsewhere waits for the end of an answer.
    const take = () => {
      const text = isRunning ? undefined : takeMessage(id);
      if (text) void run(() => latest.current({ text }));
    };
    take();
    return onKeptMessage(take);
  }, [id, run, isRunning]);
  const { messages, branches } = useShown(open, (branch) => void change.run(() => open.showBranch(branch)));
  const config = AuiConfig({
    thread: ExternalThread({
      messages, branches, isLoading: !open.isLoaded, isRunning,
      isSendDisabled: sending.isBusy || uploads.isBusy, attachmentAdapter: uploads.adapter,
      // The service itself keeps the order of what is said during an answer.
      queue: { ...NO_QUEUE, enqueue: (message) => void sendComposed(message), steer: (message) => void sendComposed(message) },
      onEdit: (message) => message.sourceId && replace(message.sourceId, textOf(message)),
      onReload: () => {
        const newest = findNewestAnswer(thread.messages);
        if (newest) replace(newest.asked.id);
      },
      onCancel: () => void change.run(open.stop),
    }),
  });
  const question = openQuestion(thread.messages);
  return (
    <AuiProvider config={config} ref={library}>
      <Agent value={open.conversation?.agent ?? ''}><Messages open={open} error={change.error} /></Agent>
      <div className="column">
        <ApproverNotices notices={thread.notices} />
        {question && (question.type === 'choices' || question.type === 'prompt') && <Question key={question.text} part={question} onSay={send} />}
        {open.conversation && (
          <PackMenu
            id={id} agent={open.conversation.agent} said={thread.messages.length} isRunning={isRunning} isBusy={sending.isBusy}
            onChoose={(menu) => void change.run(() => send({ menu }))}
          />
        )}
        {question?.type !== 'prompt' && <Composer id={id} agent={open.conversation?.agent} isUploading={uploads.isBusy} errors={{ send: sending.error, upload: uploads.error }} />}
      </div>
    </AuiProvider>
  );
}

const NO_QUEUE = { items: [], steerItems: [], move: () => {}, edit: () => {}, remove: () => {} };

/** What did not arrive stands in the composer again, and is kept for it where the reader has gone on to another page. */
function settle(id: string, composer: AssistantClient['composer'] | undefined, refused: AppendMessage | undefined) {
  const text = [refused && textOf(refused), composer?.getState().text].filter(Boolean).join('\n');
  keepDraft(id, text);
  composer?.setText(text);
  for (const { id, type, name, contentType = '' } of refused?.attachments ?? []) void composer?.addAttachment({ id, type, name, contentType, content: [] });
}

/** What the library shows; it is made anew only where something changed. */
function useShown({ thread, branches }: OpenConversation, onBranch: (branch: number) => void) {
  const progress = JSON.stringify(Object.assign({}, ...Object.values(thread.active).map((run) => run.progress)));
  const whole = useMemo(() => convertMessages(thread.messages, JSON.parse(progress) as Record<string, string>, thread.ended), [thread.messages, progress, thread.ended]);
  const messages = useMemo(() => [...whole, ...convertDrafts(thread.active)], [whole, thread.active]);
  const latest = useRef(onBranch);
  latest.current = onBranch;
  const adapter = useMemo(() => branchAdapter(thread.messages, branches, (branch) => latest.current(branch)), [thread.messages, branches]);
  return { messages, branches: adapter };
}

const showMessage = () => <MessageView />;

function Messages({ open: { thread, state, isLoaded }, error }: { open: OpenConversation; error: Error | undefined }) {
  const { say } = useTexts();
  const isAway = !useThreadViewport((viewport) => viewport.isAtBottom);
  return (
    <>
      {state === 'lost' && <p className="lost" role="status">{say('chat.lost')}</p>}
      <ThreadPrimitive.Viewport className="thread" scrollToBottomOnRunStart={false} tabIndex={0} role="log" aria-label={say('chat.messages')}>
        <div className="column">
          {!isLoaded && thread.messages.length === 0 && <Loading />}
          <ThreadPrimitive.Messages>{showMessage}</ThreadPrimitive.Messages>
          {Object.values(thread.active).some((run) => !run.draft) && <Text as="p" color="gray" className="working"><Spinner /> {say('chat.working')}</Text>}
          <Failure error={error} />
          {untold(thread).map(([run, text]) => <Notice tone="bad" role="alert" key={run}>{text}</Notice>)}
        </div>
      </ThreadPrimitive.Viewport>
      {isAway && <ThreadPrimitive.ScrollToBottom asChild behavior="instant"><PlainButton radius="full" className="newest">{say('chat.newest')}</PlainButton></ThreadPrimitive.ScrollToBottom>}
    </>
  );
}

/** Failures that no notice of the conversation tells. */
function untold({ messages, failures }: Thread): [string, string][] {
  const told = messages.flatMap((message) => message.parts.map((part) => (part.type === 'notice' ? part.text : '')));
  return Object.entries(failures).filter(([, error]) => !told.includes(error));
}
