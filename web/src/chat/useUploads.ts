import type { AttachmentAdapter } from '@assistant-ui/react';
import { useMemo, useState } from 'react';
import { authorization, refusal, type Schemas } from '../api/client';

/** Files that go with the next message. They are sent to the service as soon as they are chosen. */
export function useUploads(conversation: string) {
  const [waiting, setWaiting] = useState(0);
  const [error, setError] = useState<Error>();
  const adapter = useMemo((): AttachmentAdapter => ({
    accept: '*',
    add: async ({ file }) => {
      setWaiting((count) => count + 1);
      setError(undefined);
      try {
        const { id, name, media_type } = await upload(conversation, file);
        return { id, type: 'file', name, contentType: media_type, file, status: { type: 'requires-action', reason: 'composer-send' } };
      } catch (failure) {
        setError(failure as Error);
        throw failure;
      } finally {
        setWaiting((count) => count - 1);
      }
    },
    send: async (attachment) => ({ ...attachment, status: { type: 'complete' }, content: [] }),
    // The service removes what goes with no message.
    remove: async () => {},
  }), [conversation]);
  return { isBusy: waiting > 0, error, adapter };
}

async function upload(conversation: string, file: File): Promise<Schemas['Attachment']> {
  const path = `/v1/conversations/${conversation}/attachments?name=${encodeURIComponent(file.name)}`;
  const response = await fetch(path, { method: 'POST', headers: { ...authorization(), 'Content-Type': 'application/octet-stream' }, body: file });
  const body = (await response.json()) as Schemas['Attachment'];
  if (!response.ok) throw refusal(response.status, body);
  return body;
}
