import { Card, IconButton } from '@radix-ui/themes';
import { Link } from '@tanstack/react-router';
import { X } from 'lucide-react';
import { useNews } from '../approvals/news';
import { toApprovals, toChat } from '../links';
import { useTexts } from '../texts/texts';

/** Outcomes of own requests, wherever one is; the open conversation tells its own. */
export function Outcomes({ current }: { current: string }) {
  const { say } = useTexts();
  const { outcomes, dismiss } = useNews();
  const elsewhere = outcomes.filter((view) => !current || view.conversation_id !== current);
  return (
    <div className="toasts" role="status">
      {elsewhere.map((view) => (
        <Card key={view.id} className={`toast ${view.state}`}>
          <Link {...(view.conversation_id ? toChat(view.conversation_id) : toApprovals(view.id))} onClick={() => dismiss(view.id)}>{withoutMark(view.text)}</Link>
          <IconButton type="button" variant="ghost" color="gray" aria-label={say('close')} onClick={() => dismiss(view.id)}><X size={16} /></IconButton>
        </Card>
      ))}
    </div>
  );
}

/** The text without the symbol that begins it: here a colour says the same. */
export const withoutMark = (text: string) => text.replace(/^\p{Extended_Pictographic}\uFE0F?\s*/u, '');
