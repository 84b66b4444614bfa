import { ArrowUp, Square } from 'lucide-react';
import { useEffect, useRef, useState } from 'react';
import { Failure } from '../parts/parts';
import { useAction } from '../parts/useLoad';
import { useTexts } from '../texts/texts';

const MAX = 32_768;

/** Where one types. What was not sent stays here, also over a reload. */
export function Composer({ id, isRunning, onSend, onStop }: {
  id: string;
  isRunning: boolean;
  onSend: (text: string) => Promise<void>;
  onStop: () => Promise<void>;
}) {
  const { say } = useTexts();
  const stored = `chatelaine.draft.${id}`;
  const [text, setText] = useState(() => sessionStorage.getItem(stored) ?? '');
  const field = useRef<HTMLTextAreaElement>(null);
  const { isBusy, error, run } = useAction();
  useEffect(() => field.current?.focus({ preventScroll: true }), [id]);
  useEffect(() => {
    if (text) sessionStorage.setItem(stored, text);
    else sessionStorage.removeItem(stored);
  }, [stored, text]);
  // A message that is sent during an answer gets its own answer afterwards.
  const maySend = text.trim() !== '' && !isBusy;
  const send = () => maySend && void run(() => onSend(text.trim())).then((done) => done && setText(''));
  const stop = () => void run(onStop);
  return (
    <form className="composer" onSubmit={(event) => { event.preventDefault(); send(); }}>
      <Failure error={error} retry={send} />
      <div className="box line">
        <textarea
          ref={field} rows={1} value={text} maxLength={MAX} aria-label={say('composer.label')} placeholder={say('composer.hint')}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
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
