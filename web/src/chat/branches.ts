/** Versions of a message: where a branch begins, its first message stands in place of one of another branch. */
import type { ExternalThreadProps } from '@assistant-ui/react';
import type { Schemas } from '../api/client';
import type { Message } from './thread';

export type Branch = Schemas['ConversationBranch'];

/** The versions of one message, and which of them is shown. */
export interface Versions {
  /** The branch that shows each version. */
  branches: number[];
  current: number;
}

/** By the id of the message. Messages without another version are not in it. */
export function versionsOf(messages: Message[], branches: Branch[]): Map<string, Versions> {
  const found = new Map<string, Versions>();
  const begun = new Set([0]);
  for (const message of messages) {
    if (message.role !== 'user') continue;
    const own = branches.find(({ number }) => number === message.branch);
    const isFirst = !begun.has(message.branch);
    begun.add(message.branch);
    const [parent, seq] = isFirst && own ? [own.parent ?? 0, own.from_seq] : [message.branch, message.seq];
    const children = branches.filter((one) => one.number !== 0 && one.parent === parent && one.from_seq === seq);
    if (children.length === 0) continue;
    const numbers = [parent, ...children.map(({ number }) => number)].sort((a, b) => a - b);
    found.set(message.id, { branches: numbers, current: numbers.indexOf(message.branch) });
  }
  return found;
}

/** The versions, as the chat library asks for them: it knows the one that is shown by its message, the others by their branch. */
export function branchAdapter(messages: Message[], branches: Branch[], onBranch: (branch: number) => void): NonNullable<ExternalThreadProps['branches']> {
  const versions = versionsOf(messages, branches);
  return {
    getBranches: (id) => {
      const found = versions.get(id);
      return found ? found.branches.map((branch, at) => (at === found.current ? id : String(branch))) : [];
    },
    switchToBranch: (branch) => onBranch(Number(branch)),
  };
}
