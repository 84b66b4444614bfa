import { Link } from '@tanstack/react-router';
import { useEffect, useMemo, useRef, useState } from 'react';
import { invalidate } from '../api/queries';
import { Markdown } from '../parts/Markdown';
import { Empty, Failure, Loading } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { toChat } from '../links';
import { useTexts } from '../texts/texts';
import type { Changes } from './Actions';
import { type Branch, versionsOf } from './branches';
import { Composer } from './Composer';
import { takeFirstMessage } from './keptMessage';
import { type Around, MessageView } from './MessageView';
import { Question } from './Question';
import { type Message, openQuestion, type Thread } from './thread';
import { useConversation } from './useConversation';

export function ThreadView({ id }: { id: string }) {
  const { say } = useTexts();
  const open = useConversation(id);
  const { thread, state, isLoaded } = open;
  const scrolls = useStickToEnd();
  const change = useAction();
  const around = useAround(thread, open.branches, {
    onReplace: (message, text) => void change.run(() => open.say({ replaces: message.id, ...(text && { text }) })),
    onBranch: (branch) => void change.run(() => open.showBranch(branch)),
    mayChange: Object.keys(thread.active).length === 0,
  });
  const runs = Object.values(thread.active);
  const question = openQuestion(thread.messages);
  const send: typeof open.say = async (said) => {
    await open.say(said);
    scrolls.toEnd();
    void invalidate('/v1/conversations');
  };
  useEffect(() => {
    const text = takeFirstMessage(id);
    if (text) void change.run(() => send({ text }));
  }, [id]);
  if (open.isGone) return <div className="column"><Empty>{say('chat.gone')} <Link {...toChat()}>{say('chat.start')}</Link></Empty></div>;
  return (
    <>
      {state === 'lost' && <p className="lost" role="status">{say('chat.lost')}</p>}
      <div className="thread" ref={scrolls.ref} onScroll={scrolls.onScroll} tabIndex={0} role="log" aria-label={say('chat.messages')}>
        <div className="column">
          {!isLoaded && thread.messages.length === 0 && <Loading />}
          {thread.messages.map((message) => <MessageView key={message.id} message={message} around={around} />)}
          {runs.filter((run) => run.draft).map((run, at) => (
            <article className="message assistant" key={at} aria-busy="true" aria-label={say('role.assistant')}><Markdown text={run.draft} /></article>
          ))}
          {runs.some((run) => !run.draft) && <p className="working"><span className="dots" aria-hidden="true" />{say('chat.working')}</p>}
          <Failure error={change.error} />
          {untold(thread).map(([run, error]) => <p className="failure" role="alert" key={run}>{error}</p>)}
        </div>
      </div>
      {scrolls.isAway && <button type="button" className="newest" onClick={scrolls.toEnd}>{say('chat.newest')}</button>}
      <div className="column">
        {question && (question.type === 'choices' || question.type === 'prompt') && <Question key={question.text} part={question} onSay={send} />}
        {question?.type !== 'prompt' && (
          <Composer id={id} agent={open.conversation?.agent} isRunning={runs.length > 0} onSend={(text, attachments) => send({ ...(text && { text }), ...(attachments.length > 0 && { attachments }) })} onStop={open.stop} />
        )}
      </div>
    </>
  );
}

/** Failures that no notice of the conversation tells. */
function untold({ messages, failures }: Thread): [string, string][] {
  const told = messages.flatMap((message) => message.parts.map((part) => (part.type === 'notice' ? part.text : '')));
  return Object.entries(failures).filter(([, error]) => !told.includes(error));
}

/** What a message needs to know of the others. */
function useAround(thread: Thread, branches: Branch[], changes: Changes): Around {
  const progress = useMemo(() => Object.assign({}, ...Object.values(thread.active).map((run) => run.progress)) as Record<string, string>, [thread.active]);
  const known = useMemo(() => {
    const [results, shownApprovals]: [Around['results'], Around['shownApprovals']] = [new Map(), new Set()];
    for (const message of thread.messages)
      for (const part of message.parts)
        if (part.type === 'tool_result') {
          results.set(part.call_id, { result: part, at: message.created_at });
          if (part.approval) shownApprovals.add(part.approval);
        }
    return { results, shownApprovals };
  }, [thread.messages]);
  const said = JSON.stringify(progress);
  const versions = useMemo(() => versionsOf(thread.messages, branches), [thread.messages, branches]);
  const newest = useMemo(() => newestAnswer(thread.messages), [thread.messages]);
  const latest = useRef(changes);
  latest.current = changes;
  const { mayChange } = changes;
  return useMemo(() => ({
    ...known, versions, newest, progress: JSON.parse(said) as Record<string, string>,
    changes: {
      mayChange,
      onReplace: (message: Message, text?: string) => latest.current.onReplace(message, text),
      onBranch: (branch: number) => latest.current.onBranch(branch),
    },
  }), [known, versions, newest, said, mayChange]);
}

function newestAnswer(messages: Message[]): Around['newest'] {
  const answer = messages.findLast((message) => message.role === 'assistant');
  const asked = messages.findLast((message) => message.role === 'user');
  return answer && asked && answer.seq > asked.seq ? { answer: answer.id, asked } : undefined;
}

/** Keeps the end in view, unless the reader has gone up. */
function useStickToEnd() {
  const ref = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const lastTop = useRef(0);
  const [isAway, setIsAway] = useState(false);
  const toEnd = () => {
    isAtEnd.current = true;
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  const onScroll = () => {
    const box = ref.current;
    if (!box) return;
    const isEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    // What grows below does not lead away from the end; going up does.
    isAtEnd.current = isEnd || (isAtEnd.current && box.scrollTop >= lastTop.current);
    lastTop.current = box.scrollTop;
    setIsAway(!isAtEnd.current);
  };
  useEffect(() => {
    // A card may grow when what it shows is loaded, and the window may change.
    const [box, inside] = [ref.current, ref.current?.firstElementChild];
    if (!box || !inside) return;
    const observer = new ResizeObserver(() => isAtEnd.current && toEnd());
    observer.observe(box);
    observer.observe(inside);
    return () => observer.disconnect();
  }, []);
  return { ref, isAway, toEnd, onScroll };
}
