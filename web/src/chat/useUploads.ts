import { useState } from 'react';
import { authorization, refusal, type Schemas } from '../api/client';
import { useAction } from '../parts/useAction';

export type Attachment = Schemas['Attachment'];

/** Files that go with the next message. They are sent to the service as soon as they are chosen. */
export function useUploads(conversation: string) {
  const [files, setFiles] = useState<Attachment[]>([]);
  const { isBusy, error, run } = useAction();
  const add = (chosen: Iterable<File>) => run(async () => {
    for (const file of chosen) {
      const made = await upload(conversation, file);
      setFiles((old) => [...old, made]);
    }
  });
  const remove = (id: string) => setFiles((old) => old.filter((file) => file.id !== id));
  return { files, isBusy, error, add, remove, clear: () => setFiles([]) };
}

async function upload(conversation: string, file: File): Promise<Attachment> {
  const path = `/v1/conversations/${conversation}/attachments?name=${encodeURIComponent(file.name)}`;
  const response = await fetch(path, { method: 'POST', headers: { ...authorization(), 'Content-Type': 'application/octet-stream' }, body: file });
  const body = (await response.json()) as Attachment;
  if (!response.ok) throw refusal(response.status, body);
  return body;
}
