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

/** The messages that are shown, each with the parts that are shown. */
export function convertMessages(messages: Message[], progress: Record<string, string>): ExternalThreadMessage[] {
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
  // The call shows that its request waits; the outcome also stands where it happens.
  const isShown = (part: Part) => !(part.type === 'approval' && part.state === 'pending' && calledFor.has(part.id));
  const newest = findNewestAnswer(messages)?.answer;
  return messages.flatMap((message) => {
    // A message of the program with a result answers the call that a person typed.
    const parts = message.role === 'tool' ? [] : message.parts.filter(isShown).map((part) => (part.type === 'tool_result' ? textOfResult(part, calls.get(part.call_id)) : part));
    if (parts.length === 0) return [];
    const content = parts.map((part): Content => {
      if (part.type === 'text' && !part.source) return { type: 'text', text: part.text };
      if (part.type !== 'tool_call') return { type: 'data', name: part.type, data: part };
      const artifact: CallView = { call: part, at: message.created_at, result: results.get(part.call_id), progress: progress[part.call_id], isTyped: part.call_id === `call_${message.run_id?.replaceAll('-', '')}` };
      return { type: 'tool-call', toolCallId: part.call_id, toolName: part.tool ?? part.name, args: {}, argsText: '', artifact };
    });
    const origin: Origin = { message, isNewestAnswer: message.id === newest?.id };
    const common = { id: message.id, createdAt: new Date(message.created_at) };
    if (message.role === 'user')
      return { ...common, role: 'user', content: content as Extract<ExternalThreadMessage, { role: 'user' }>['content'], attachments: [], metadata: { custom: { ...origin } } };
    // The program's own messages have parts like an answer.
    return { ...common, role: 'assistant', content, status: { type: 'complete', reason: 'unknown' }, metadata: { ...NO_STEPS, custom: { ...origin } } };
  });
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
