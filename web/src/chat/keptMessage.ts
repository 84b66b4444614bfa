/** What a user said before there was a conversation. The conversation says it when it is open. */
const kept = new Map<string, string>();

export const keepFirstMessage = (conversation: string, text: string) => void kept.set(conversation, text);

/** The message, once. */
export function takeFirstMessage(conversation: string): string | undefined {
  const text = kept.get(conversation);
  kept.delete(conversation);
  return text;
}
