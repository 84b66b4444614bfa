import { Link, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { FileText } from 'lucide-react';
import { useEffect, useState } from 'react';
import { authorization, type Schemas } from '../api/client';
import { Failure } from '../parts/parts';

type Attachment = Pick<Schemas['Attachment'], 'id' | 'name' | 'media_type'>;

/** An image or a text file of a message. It is loaded with the user's credential, which an address could not carry. */
export function AttachmentView({ conversation, attachment }: { conversation: string; attachment: Attachment }) {
  const [address, setAddress] = useState('');
  const { data: file, error } = useQuery({
    queryKey: ['/v1/conversations/{id}/attachments/{attachment}', conversation, attachment.id],
    queryFn: () => loadFile(conversation, attachment.id),
    staleTime: Infinity,
  });
  const isImage = attachment.media_type.startsWith('image/');
  useEffect(() => {
    if (!file) return;
    const made = URL.createObjectURL(file);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  if (error) return <Failure error={error} />;
  if (isImage) return address ? <img src={address} alt={attachment.name} /> : <Text color="gray">{attachment.name}</Text>;
  return <Link href={address || undefined} download={attachment.name}><FileText size={16} /> {attachment.name}</Link>;
}

async function loadFile(conversation: string, id: string): Promise<Blob> {
  const response = await fetch(`/v1/conversations/${conversation}/attachments/${id}`, { headers: authorization() });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.blob();
}
