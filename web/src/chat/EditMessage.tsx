import { useState } from 'react';
import { useTexts } from '../texts/texts';

/** The text of a message of the user, to be said in another way. */
export function EditMessage({ text, onEnd }: { text: string; onEnd: (text?: string) => void }) {
  const { say } = useTexts();
  const [draft, setDraft] = useState(text);
  return (
    <form className="edit" onSubmit={(event) => { event.preventDefault(); onEnd(draft.trim()); }}>
      <textarea
        autoFocus aria-label={say('message.edit')} rows={2} maxLength={32_768} value={draft} onChange={(event) => setDraft(event.target.value)}
        onKeyDown={(event) => { if (event.key === 'Escape') onEnd(); }}
      />
      <p className="muted">{say('message.edit.help')}</p>
      <div className="buttons">
        <button type="submit" className="primary" disabled={!draft.trim()}>{say('send')}</button>
        <button type="button" className="quiet" onClick={() => onEnd()}>{say('cancel')}</button>
      </div>
    </form>
  );
}
