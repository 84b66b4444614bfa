/**
 * What a conversation looks like, built from events. Messages and the states of runs are durable; a draft is the
 * text of an answer that is still coming, and is gone when its message arrives.
 */
import type { Schemas } from '../api/client';
import type { StreamEvent } from '../api/stream';

export type Message = Schemas['Message'];
export type Part = Schemas['Part'];
export type ApprovalNotice = Schemas['ApprovalNotice'];

/** Notices that are shown at once. */
const MOST_NOTICES = 4;

export interface ActiveRun {
  draft: string;
  /** Pieces were missed: the text is shown when it is whole, or when the next one begins. */
  isPartial: boolean;
  progress: Record<string, string>;
}

export interface Thread {
  /** The branch that is shown. Its messages are these, and those of the branches that it began in. */
  branch: number;
  messages: Message[];
  active: Record<string, ActiveRun>;
  failures: Record<string, string>;
  ended: string[];
  /** What an approver is told while the conversation is open: what waits, and how calls that they approved ended. */
  notices: ApprovalNotice[];
}

export const EMPTY: Thread = { branch: 0, messages: [], active: {}, failures: {}, ended: [], notices: [] };

export type Change =
  | { type: 'messages'; messages: Message[] }
  | { type: 'branch'; branch: number; messages: Message[] }
  | { type: 'run'; id: string; status: Schemas['RunStatus']; error?: string | null | undefined; isPartial: boolean }
  | { type: 'event'; event: StreamEvent }
  | { type: 'interrupted' };

export function change(thread: Thread, step: Change): Thread {
  switch (step.type) {
    case 'messages':
      return { ...thread, messages: merge(thread.messages, step.messages) };
    case 'branch':
      // Of the same branch, some may have come in the meantime.
      return { ...thread, branch: step.branch, messages: merge(step.branch === thread.branch ? thread.messages : [], step.messages) };
    case 'run':
      return changeRun(thread, step);
    case 'interrupted':
      return { ...thread, active: mapRuns(thread.active, (run) => ({ ...run, draft: '', isPartial: true })) };
    case 'event':
      return changeByEvent(thread, step.event);
  }
}

/** In the order of their numbers, each once. */
function merge(old: Message[], added: Message[]): Message[] {
  const bySeq = new Map([...old, ...added].map((message) => [message.seq, message]));
  return [...bySeq.values()].sort((a, b) => a.seq - b.seq);
}

function mapRuns(active: Thread['active'], update: (run: ActiveRun) => ActiveRun): Thread['active'] {
  return Object.fromEntries(Object.entries(active).map(([id, run]) => [id, update(run)]));
}

function changeRun(thread: Thread, { id, status, error, isPartial }: Extract<Change, { type: 'run' }>): Thread {
  if (status === 'queued' || status === 'running') {
    // What was learned by asking may be older than what was heard.
    if (thread.active[id] || thread.ended.includes(id)) return thread;
    return { ...thread, active: { ...thread.active, [id]: { draft: '', isPartial, progress: {} } } };
  }
  const { [id]: _, ...active } = thread.active;
  const failures = error ? { ...thread.failures, [id]: error } : thread.failures;
  return { ...thread, active, failures, ended: [...thread.ended, id] };
}

function updateRun(thread: Thread, id: string, update: (run: ActiveRun) => ActiveRun): Thread {
  const run = thread.active[id];
  return run ? { ...thread, active: { ...thread.active, [id]: update(run) } } : thread;
}

function changeByEvent(thread: Thread, { name, data }: StreamEvent): Thread {
  const event = data as { run_id: string; text: string; call_id: string; message?: string; progress: number; total?: number };
  switch (name) {
    case 'message': {
      const message = data as Message;
      if (message.branch !== thread.branch) return thread;
      const added = { ...thread, messages: merge(thread.messages, [message]) };
      if (!message.run_id || message.role === 'user' || message.role === 'system') return added;
      return updateRun(added, message.run_id, (run) => ({ ...run, draft: '', isPartial: false }));
    }
    case 'run': {
      const { run_id: id, status, error } = data as { run_id: string; status: Schemas['RunStatus']; error?: string };
      return changeRun(thread, { type: 'run', id, status, error, isPartial: false });
    }
    case 'delta':
      return updateRun(thread, event.run_id, (run) => (run.isPartial ? run : { ...run, draft: run.draft + event.text }));
    case 'reset':
      return updateRun(thread, event.run_id, (run) => ({ ...run, draft: '', isPartial: false }));
    case 'tool_progress': {
      const done = event.total ? `${Math.round((100 * event.progress) / event.total)} %` : '';
      const text = [event.message, done].filter(Boolean).join(' · ');
      return updateRun(thread, event.run_id, (run) => ({ ...run, progress: { ...run.progress, [event.call_id]: text } }));
    }
    case 'notice': {
      // A stream that is opened again says again what waits; the number of several is said anew each time.
      const notice = data as ApprovalNotice;
      const isSaidAnew = (old: ApprovalNotice) => old.code === 'approval_waits' && notice.code === old.code && (!notice.approval || old.approval === notice.approval);
      const kept = thread.notices.filter((old) => !isSaidAnew(old));
      return { ...thread, notices: [...kept, notice].slice(-MOST_NOTICES) };
    }
    default:
      return thread;
  }
}

/** The part that waits for the user: a choice or a question that nobody has answered. */
export function openQuestion(messages: Message[]): Part | undefined {
  for (const message of [...messages].reverse()) {
    if (message.role === 'user') return undefined;
    const part = message.parts.find((item) => item.type === 'choices' || item.type === 'prompt');
    if (part) return part;
    if (message.role === 'system' && message.parts.every((item) => item.type === 'text' || item.type === 'tool_result')) return undefined;
  }
  return undefined;
}
