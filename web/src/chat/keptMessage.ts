/** What a user said elsewhere than in a conversation. The conversation says it as soon as it is open. */
const kept = new Map<string, string>();
const listeners = new Set<() => void>();

export function keepMessage(conversation: string, text: string) {
  kept.set(conversation, text);
  for (const listener of listeners) listener();
}

/** The message, once. */
export function takeMessage(conversation: string): string | undefined {
  const text = kept.get(conversation);
  kept.delete(conversation);
  return text;
}

/** Calls for each message that is kept from now on, until the function that it returns is called. */
export function onKeptMessage(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}
