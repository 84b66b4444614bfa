/** A conversation in the form in which the chat library shows it. The API's own message travels along. */
import type { AppendMessage, ExternalThreadMessage } from '@assistant-ui/react';
import type { Schemas } from '../api/client';
import type { Message, Part, Thread } from './thread';

type ToolResult = Schemas['ToolResult'];

/** What a tool call shows besides itself. */
export interface CallView {
  call: Schemas['ToolCall'];
  at: string;
  result: { value: ToolResult; at: string } | undefined;
  progress: string | undefined;
  /** A person typed it: its result is the answer and stands below. */
  isTyped: boolean;
}

/** What travels with a message of the library. The draft of an answer has no message yet. */
export interface Origin {
  message?: Message;
  isNewestAnswer?: boolean;
}

type Content = Extract<ExternalThreadMessage, { role: 'assistant' }>['content'][number];

const NO_STEPS = { unstable_state: null, unstable_annotations: [], unstable_data: [], steps: [] };

/** The name of a part with calls that follow one another. */
export const CALLS = 'calls';

/** The messages that are shown, each with the parts that are shown. `ended` are runs of which is known that they are over. */
export function convertMessages(messages: Message[], progress: Record<string, string>, ended: string[]): ExternalThreadMessage[] {
  const results = new Map<string, CallView['result']>();
  const calls = new Map<string, Schemas['ToolCall']>();
  const calledFor = new Set<string>();
  for (const message of messages)
    for (const part of message.parts)
      if (part.type === 'tool_call') calls.set(part.call_id, part);
      else if (part.type === 'tool_result') {
        results.set(part.call_id, { value: part, at: message.created_at });
        if (part.approval) calledFor.add(part.approval);
      }
  // An outcome is told once: by the card of its call, and by the answer that follows or, without one, where it happens.
  const isShown = (part: Part, message: Message) => !(part.type === 'approval' && calledFor.has(part.id) && (part.state === 'pending' || isTold(message, messages, ended)));
  const newest = findNewestAnswer(messages)?.answer;
  const shown: ExternalThreadMessage[] = [];
  for (const message of messages) {
    // A message of the program with a result answers the call that a person typed.
    const parts = message.role === 'tool' ? [] : message.parts.filter((part) => isShown(part, message)).map((part) => (part.type === 'tool_result' ? textOfResult(part, calls.get(part.call_id)) : part));
    if (parts.length === 0) continue;
    const viewOf = (call: Schemas['ToolCall']): CallView => ({ call, at: message.created_at, result: results.get(call.call_id), progress: progress[call.call_id], isTyped: call.call_id === `call_${message.run_id?.replaceAll('-', '')}` });
    const content: Content[] = [];
    for (const part of parts)
      if (part.type === 'text' && !part.source) content.push({ type: 'text', text: part.text });
      else if (part.type !== 'tool_call') content.push({ type: 'data', name: part.type, data: part });
      else addCall(content, viewOf(part));
    const calledBefore = callsOf(shown.at(-1), message);
    const onlyCalls = content.length === 1 && isCalls(content[0]) ? content[0].data : undefined;
    if (calledBefore && onlyCalls) {
      calledBefore.push(...onlyCalls);
      continue;
    }
    const origin: Origin = { message, isNewestAnswer: message.id === newest?.id };
    const common = { id: message.id, createdAt: new Date(message.created_at) };
    if (message.role === 'user') shown.push({ ...common, role: 'user', content: content as Extract<ExternalThreadMessage, { role: 'user' }>['content'], attachments: [], metadata: { custom: { ...origin } } });
    // The program's own messages have parts like an answer.
    else shown.push({ ...common, role: 'assistant', content, status: { type: 'complete', reason: 'unknown' }, metadata: { ...NO_STEPS, custom: { ...origin } } });
  }
  return shown;
}

/** Whether the answer to an outcome tells it, or is still expected to. */
function isTold({ run_id: run, seq }: Message, messages: Message[], ended: string[]): boolean {
  if (!run) return false;
  return !ended.includes(run) || messages.some((other) => other.run_id === run && other.seq > seq && other.role === 'assistant' && other.parts.some((part) => part.type === 'text'));
}

const isCalls = (part: Content | undefined): part is Content & { data: CallView[] } => part?.type === 'data' && part.name === CALLS;

/** Calls without a word between them are one part. */
function addCall(content: Content[], call: CallView) {
  const last = content.at(-1);
  if (isCalls(last)) last.data.push(call);
  else content.push({ type: 'data', name: CALLS, data: [call] });
}

/** The calls with which a message ends, where another one of the same run goes on with calls. */
function callsOf(shown: ExternalThreadMessage | undefined, { run_id: run, role }: Message): CallView[] | undefined {
  const before = (shown?.metadata?.custom as Origin | undefined)?.message;
  const last = shown?.role === 'assistant' && typeof shown.content !== 'string' ? shown.content.at(-1) : undefined;
  return run && before?.run_id === run && before.role === role && isCalls(last as Content | undefined) ? (last as { data: CallView[] }).data : undefined;
}

/** What came of a call as a text: the words of its server, unless the program did not make the call. */
function textOfResult({ status, text }: ToolResult, call: Schemas['ToolCall'] | undefined): Extract<Part, { type: 'text' }> {
  const isMade = status === 'succeeded' || status === 'failed' || status === 'outcome_unknown';
  const source = isMade && call?.server && call.tool ? { server: call.server, tool: call.tool } : undefined;
  return { type: 'text', text, ...(source && { source }) };
}

/** The answers that are still coming. */
export function convertDrafts(active: Thread['active']): ExternalThreadMessage[] {
  return Object.entries(active).flatMap(([run, { draft }]) => (draft ? {
    id: `draft of ${run}`, createdAt: new Date(), role: 'assistant', content: [{ type: 'text', text: draft }],
    status: { type: 'running' }, metadata: { ...NO_STEPS, custom: {} },
  } : []));
}

/** The newest answer, and the message of the user that it answers. */
export function findNewestAnswer(messages: Message[]): { answer: Message; asked: Message } | undefined {
  const answer = messages.findLast((message) => message.role === 'assistant');
  const asked = messages.findLast((message) => message.role === 'user');
  return answer && asked && answer.seq > asked.seq ? { answer, asked } : undefined;
}

/** The text that a person wrote. */
export const textOf = ({ content }: AppendMessage) => content.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n\n').trim();
