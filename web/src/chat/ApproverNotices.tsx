/** What an approver is told in the conversation that is open: what waits for them, and how calls that they approved ended. */
import { IconButton, Link } from '@radix-ui/themes';
import { X } from 'lucide-react';
import { type ReactNode, useState } from 'react';
import { useApproval, useBadge } from '../approvals/news';
import { needsOf } from '../approvals/Outcome';
import { type Called, CallSentence } from '../parts/CallSentence';
import { withoutMark } from '../parts/Outcomes';
import { Notice } from '../parts/parts';
import { useMe } from '../signin/session';
import { useTexts } from '../texts/texts';
import type { ApprovalNotice } from './thread';

export function ApproverNotices({ notices }: { notices: ApprovalNotice[] }) {
  const [closed, setClosed] = useState<ApprovalNotice[]>([]);
  const newest = notices.at(-1);
  return (
    <div className="notices" role="status">
      {notices.filter((notice) => !closed.includes(notice)).map((notice) => {
        const line = { notice, onClose: () => setClosed([...closed, notice]) };
        const key = `${notice.code} ${notice.approval ?? notice.text}`;
        if (notice.code !== 'approval_waits') return <Line key={key} {...line}>{withoutMark(notice.text)}</Line>;
        return notice.approval ? <Request key={key} id={notice.approval} isNewest={notice === newest} {...line} /> : <Several key={key} {...line} />;
      })}
    </div>
  );
}

interface LineProps {
  notice: ApprovalNotice;
  onClose: () => void;
}

function Line({ notice, onClose, children }: LineProps & { children: ReactNode }) {
  const { say } = useTexts();
  return (
    <Notice tone="plain">
      <span className="line">
        <Link href={notice.link}>{children}</Link>
        <IconButton type="button" variant="ghost" color="gray" aria-label={say('close')} onClick={onClose}><X size={16} /></IconButton>
      </span>
    </Notice>
  );
}

/** One request, as it stands now. What somebody else decided stands there until the next notice. */
function Request({ id, isNewest, ...line }: LineProps & { id: string; isNewest: boolean }) {
  const { say } = useTexts();
  const { user } = useMe();
  const { data: view, error } = useApproval(id);
  if (!view) return error && <Line {...line}>{withoutMark(line.notice.text)}</Line>;
  // How a call ended that this person approved is a notice of its own.
  if (view.votes.some(({ by }) => by === user)) return null;
  if (view.state !== 'pending') return isNewest && <Line {...line}>{withoutMark(view.text)}</Line>;
  return (
    <Line {...line}>
      {say('notice.waits', { name: view.requester.name, agent: view.agent, code: view.code })} <b><CallSentence hasFirst {...(view as Called)} /></b>{view.min_approvals > 1 && ` (${needsOf(view, say)})`}
    </Line>
  );
}

/** Several requests: as many as wait now. */
function Several(line: LineProps) {
  const { say } = useTexts();
  const { pending_approvals: waiting } = useBadge();
  if (waiting === 0) return null;
  return <Line {...line}>{waiting === line.notice.count ? withoutMark(line.notice.text) : say('badge', { count: waiting })}</Line>;
}
