import { Card, IconButton } from '@radix-ui/themes';
import { Link } from '@tanstack/react-router';
import { X } from 'lucide-react';
import { useNews } from '../approvals/news';
import { notifyOfOutcome, notifyOfRequest } from '../approvals/notify';
import { IS_PANE } from '../early';
import { toApprovals, toChat } from '../links';
import { useTexts } from '../texts/texts';
import { NotifyQuestion } from './NotifyQuestion';

/** Outcomes of own requests, wherever one is; the open conversation tells its own. Nothing lies above a page where `isQueue`. */
export function Outcomes({ current, isQueue = false }: { current: string; isQueue?: boolean }) {
  const { say } = useTexts();
  const { outcomes, dismiss } = useNews(IS_PANE ? NOBODY : { onRequest: (view) => void notifyOfRequest(view, say).catch(() => {}), onOutcome: (view) => notifyOfOutcome(view, say) });
  const elsewhere = outcomes.filter((view) => !current || view.conversation_id !== current);
  return (
    <div className="toasts" role="status">
      {!isQueue && <NotifyQuestion />}
      {elsewhere.map((view) => (
        <Card key={view.id} className={`toast ${view.state}`}>
          <Link {...(view.conversation_id ? toChat(view.conversation_id) : toApprovals(view.id))} onClick={() => dismiss(view.id)}>{withoutMark(view.text)}</Link>
          <IconButton type="button" variant="ghost" color="gray" aria-label={say('close')} onClick={() => dismiss(view.id)}><X size={16} /></IconButton>
        </Card>
      ))}
    </div>
  );
}

const NOBODY = { onRequest: () => {}, onOutcome: () => {} };

/** The text without the symbol that begins it: here a colour says the same. */
export const withoutMark = (text: string) => text.replace(/^\p{Extended_Pictographic}\uFE0F?\s*/u, '');

const INSTANT = /\b\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z\b/g;

/** A text of the program with its times as the reader writes them. The arguments of a call, whose lines begin with four blanks, stay as they are. */
export const withLocalTimes = (text: string, language: string) =>
  text.replace(/^(?! {4}).+$/gm, (line) => line.replace(INSTANT, (time) => new Date(time).toLocaleString(language, { dateStyle: 'medium', timeStyle: 'short' })));
