import { FileText } from 'lucide-react';
import { useEffect, useState } from 'react';
import { authorization, type Schemas } from '../api/client';
import { Failure } from '../parts/parts';
import { asError } from '../parts/useLoad';

type Attachment = Schemas['Attachment'];

/** An image or a text file of a message. It is loaded with the user's credential, which an address could not carry. */
export function AttachmentView({ conversation, attachment }: { conversation: string; attachment: Attachment }) {
  const [address, setAddress] = useState('');
  const [error, setError] = useState<Error>();
  const isImage = attachment.media_type.startsWith('image/');
  useEffect(() => {
    let made = '';
    let isCurrent = true;
    loadFile(conversation, attachment.id).then((file) => {
      if (!isCurrent) return;
      made = URL.createObjectURL(file);
      setAddress(made);
    }, (failure: unknown) => isCurrent && setError(asError(failure)));
    return () => {
      isCurrent = false;
      URL.revokeObjectURL(made);
    };
  }, [conversation, attachment.id]);
  if (error) return <Failure error={error} />;
  if (isImage) return address ? <img src={address} alt={attachment.name} /> : <span className="muted">{attachment.name}</span>;
  return <a href={address || undefined} download={attachment.name}><FileText size={16} /> {attachment.name}</a>;
}

async function loadFile(conversation: string, id: string): Promise<Blob> {
  const response = await fetch(`/v1/conversations/${conversation}/attachments/${id}`, { headers: authorization() });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.blob();
}
