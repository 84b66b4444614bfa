/** What an approver is told in the conversation that is open: what waits for them, and how calls that they approved ended. */
import { Flex, IconButton, Link } from '@radix-ui/themes';
import { X } from 'lucide-react';
import { useState } from 'react';
import { useBadge } from '../approvals/news';
import { withoutMark } from '../parts/Outcomes';
import { Notice } from '../parts/parts';
import { useTexts } from '../texts/texts';
import type { ApprovalNotice } from './thread';

export function ApproverNotices({ notices }: { notices: ApprovalNotice[] }) {
  const { say } = useTexts();
  const { pending_approvals: waiting } = useBadge();
  const [closed, setClosed] = useState<ApprovalNotice[]>([]);
  const shown = notices.filter((notice) => !closed.includes(notice) && (notice.code !== 'approval_waits' || waiting > 0));
  return (
    <div role="status">
      {shown.map((notice) => (
        <Notice key={notice.text} tone="plain">
          <Flex as="span" gap="2" justify="between">
            <Link href={notice.link}>{withoutMark(notice.text)}</Link>
            <IconButton type="button" variant="ghost" color="gray" aria-label={say('close')} onClick={() => setClosed([...closed, notice])}><X size={16} /></IconButton>
          </Flex>
        </Notice>
      ))}
    </div>
  );
}
