import { ArrowUp, Paperclip, Square, X } from 'lucide-react';
import { useEffect, useRef, useState } from 'react';
import { Failure } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { AttachmentView } from './AttachmentView';
import { useSuggestions } from './useSuggestions';
import { useUploads } from './useUploads';

const MAX = 32_768;

/** Where one types. What was not sent stays here, also over a reload. */
export function Composer({ id, agent, isRunning, onSend, onStop }: {
  id: string;
  /** Its skills and prompts are suggested as commands. */
  agent: string | undefined;
  isRunning: boolean;
  onSend: (text: string, attachments: string[]) => Promise<void>;
  onStop: () => Promise<void>;
}) {
  const { say } = useTexts();
  const stored = `chatelaine.draft.${id}`;
  const [text, setText] = useState(() => sessionStorage.getItem(stored) ?? '');
  const field = useRef<HTMLTextAreaElement>(null);
  const { isBusy, error, run } = useAction();
  const suggestions = useSuggestions(agent, text, setText);
  const uploads = useUploads(id);
  const picker = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus({ preventScroll: true }), [id]);
  useEffect(() => {
    if (text) sessionStorage.setItem(stored, text);
    else sessionStorage.removeItem(stored);
  }, [stored, text]);
  // A message that is sent during an answer gets its own answer afterwards.
  const maySend = (text.trim() !== '' || uploads.files.length > 0) && !isBusy && !uploads.isBusy;
  const clear = () => {
    setText('');
    uploads.clear();
  };
  const send = () => maySend && void run(() => onSend(text.trim(), uploads.files.map((file) => file.id))).then((done) => done && clear());
  const stop = () => void run(onStop);
  return (
    <form
      className="composer" onSubmit={(event) => { event.preventDefault(); send(); }} onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => { event.preventDefault(); void uploads.add(event.dataTransfer.files); }}
    >
      <Failure error={error} retry={send} />
      <Failure error={uploads.error} />
      {uploads.files.length > 0 && (
        <ul className="attachments">
          {uploads.files.map((file) => (
            <li key={file.id}><AttachmentView conversation={id} attachment={file} /><button type="button" className="quiet icon" aria-label={say('attachment.remove', { name: file.name })} onClick={() => uploads.remove(file.id)}><X size={16} /></button></li>
          ))}
        </ul>
      )}
      {suggestions.list}
      <div className="box line">
        <input ref={picker} type="file" multiple hidden aria-label={say('attachment.add')} onChange={(event) => void uploads.add(event.target.files ?? []).then(() => { if (picker.current) picker.current.value = ''; })} />
        <button type="button" className="quiet icon" aria-label={say('attachment.add')} title={say('attachment.add')} disabled={uploads.isBusy} onClick={() => picker.current?.click()}><Paperclip size={18} /></button>
        <textarea
          ref={field} rows={1} value={text} maxLength={MAX} aria-label={say('composer.label')} placeholder={say('composer.hint')}
          onChange={(event) => setText(event.target.value)}
          onPaste={(event) => { if (event.clipboardData.files.length > 0) { event.preventDefault(); void uploads.add(event.clipboardData.files); } }}
          {...suggestions.field}
          onKeyDown={(event) => {
            if (suggestions.onKey(event)) return;
            if (event.key === 'Escape' && isRunning) stop();
            if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            send();
          }}
        />
        {isRunning && <button type="button" className="quiet" disabled={isBusy} onClick={stop}><Square size={14} fill="currentColor" /> {say('stop')}</button>}
        {(!isRunning || maySend) && <button type="submit" className="primary icon" aria-label={say('send')} disabled={!maySend}><ArrowUp size={18} /></button>}
      </div>
      <small>{say('composer.help')}</small>
    </form>
  );
}
