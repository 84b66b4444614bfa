import { type ReactNode } from 'react';
import { api, read, type Schemas } from '../api/client';
import { ConfirmButton, Failure } from '../parts/parts';
import { useAction } from '../parts/useLoad';
import { go } from '../router';
import { useTexts } from '../texts/texts';

/** The title of the open conversation, and what can be done with the whole of it. */
export function ConversationBar({ id, listed, onChange, children }: {
  id: string;
  listed: Schemas['ConversationPage']['items'][number] | undefined;
  onChange: () => void;
  children: ReactNode;
}) {
  const { say } = useTexts();
  const { isBusy, error, run } = useAction();
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/conversations/{id}', { params: { path: { id } } }));
    onChange();
    go('chat');
  });
  return (
    <div className="bar">
      {children}
      <h1>{id ? listed?.title || say('chat.untitled') : say('chat.start')}</h1>
      {id && <ConfirmButton label={say('delete')} question={say('chat.delete')} disabled={isBusy} onConfirm={() => void remove()} />}
      <Failure error={error} />
    </div>
  );
}
