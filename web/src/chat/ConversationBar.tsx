import { Button, Heading, Text, TextField } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { Archive, Download, Ellipsis, Pencil, Pin, Trash2 } from 'lucide-react';
import { type ComponentProps, type ReactNode, useRef, useState } from 'react';
import { api, authorization, read, refusal, type Schemas } from '../api/client';
import { get, invalidate } from '../api/queries';
import { IconAction } from '../parts/IconAction';
import { ConfirmButton, Failure } from '../parts/parts';
import { PlainButton } from '../parts/PlainButton';
import { Popup } from '../parts/Popup';
import { useAction } from '../parts/useAction';
import { toChat } from '../links';
import { useTexts } from '../texts/texts';

type Listed = Schemas['ConversationPage']['items'][number];

/** The title of the open conversation, and what can be done with the whole of it. */
export function ConversationBar({ id, listed, isListLoaded, children }: {
  id: string;
  listed: Listed | undefined;
  isListLoaded: boolean;
  children: ReactNode;
}) {
  const { say } = useTexts();
  if (!id) return <div className="bar">{children}<Title>{say('chat.start')}</Title></div>;
  return listed ? <Open item={listed}>{children}</Open> : <Unlisted id={id} isListLoaded={isListLoaded}>{children}</Unlisted>;
}

/** One that is not in the part of the list that is loaded. */
function Unlisted({ id, isListLoaded, children }: { id: string; isListLoaded: boolean; children: ReactNode }) {
  const { say } = useTexts();
  const found = useQuery({ ...get('/v1/conversations/{id}', { path: { id } }), enabled: isListLoaded });
  if (found.data) return <Open item={found.data}>{children}</Open>;
  return <div className="bar">{children}<Title>{say('chat.untitled')}</Title></div>;
}

function Open({ item, children }: { item: Listed; children: ReactNode }) {
  const { say } = useTexts();
  const navigate = useNavigate();
  const [isRenaming, setIsRenaming] = useState(false);
  const menu = useRef<HTMLDivElement>(null);
  const { isBusy, error, run } = useAction();
  const path = { id: item.id };
  const change = (body: Schemas['ConversationPatch']) => run(async () => {
    await read(api.PATCH('/v1/conversations/{id}', { params: { path }, body }));
    menu.current?.hidePopover();
    await Promise.all([invalidate('/v1/conversations'), invalidate('/v1/conversations/{id}', { path })]);
  });
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/conversations/{id}', { params: { path } }));
    void invalidate('/v1/conversations');
    await navigate(toChat());
  });
  if (isRenaming)
    return <div className="bar"><Rename title={item.title ?? ''} onEnd={(title) => { setIsRenaming(false); if (title !== undefined) void change({ title }); }} /></div>;
  return (
    <div className="bar">
      {children}
      <Title>{item.title || say('chat.untitled')}</Title>
      <Text size="2" color="gray" className="only-wide">{item.agent}</Text>
      <Failure error={error} />
      <Popup ref={menu} label={say('chat.more')} button={(opens) => <IconAction label={say('chat.more')} {...opens}><Ellipsis size={18} /></IconAction>}>
        <MenuButton onClick={() => { setIsRenaming(true); }}><Pencil size={16} /> {say('chat.rename')}</MenuButton>
        <MenuButton disabled={isBusy} onClick={() => void change({ pinned: !item.pinned })}><Pin size={16} /> {say(item.pinned ? 'chat.unpin' : 'chat.pin')}</MenuButton>
        <MenuButton disabled={isBusy} onClick={() => void change({ archived: !item.archived })}><Archive size={16} /> {say(item.archived ? 'chat.unarchive' : 'chat.archive')}</MenuButton>
        <MenuButton disabled={isBusy} onClick={() => void run(() => download(item))}><Download size={16} /> {say('chat.download')}</MenuButton>
        <ConfirmButton label={say('delete')} icon={<Trash2 size={16} />} question={say('chat.delete')} disabled={isBusy} onConfirm={() => void remove()} />
      </Popup>
    </div>
  );
}

function Title({ children }: { children: string }) {
  return <Heading as="h1" size="3" truncate className="title">{children}</Heading>;
}

function MenuButton(props: ComponentProps<typeof Button>) {
  return <Button type="button" variant="soft" color="gray" {...props} />;
}

/** Saves the conversation as a Markdown file. */
async function download({ id, title }: Listed) {
  const response = await fetch(`/v1/conversations/${id}/export`, { headers: authorization() });
  if (!response.ok) throw refusal(response.status, await response.json().catch(() => null));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(await response.blob());
  link.download = `${title || id}.md`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function Rename({ title, onEnd }: { title: string; onEnd: (title?: string) => void }) {
  const { say } = useTexts();
  const [text, setText] = useState(title);
  return (
    <form onSubmit={(event) => { event.preventDefault(); onEnd(text.trim()); }}>
      <TextField.Root
        className="grow" aria-label={say('chat.title')} autoFocus required maxLength={200} value={text} onFocus={(event) => event.target.select()}
        onChange={(event) => setText(event.target.value)} onKeyDown={(event) => { if (event.key === 'Escape') onEnd(); }}
      />
      <Button type="submit">{say('save')}</Button>
      <PlainButton onClick={() => onEnd()}>{say('cancel')}</PlainButton>
    </form>
  );
}
