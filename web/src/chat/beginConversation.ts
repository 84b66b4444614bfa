import { api, read } from '../api/client';
import { invalidate } from '../api/queries';
import { keepMessage } from './keptMessage';

/** Makes a conversation, and says something in it as soon as it is open. */
export async function beginConversation(agent: string, text?: string): Promise<string> {
  const { id } = await read(api.POST('/v1/conversations', { body: { agent } }));
  if (text) keepMessage(id, text);
  void invalidate('/v1/conversations');
  return id;
}
