-- The same call of the same person waits once in a conversation; in another conversation it is a request of its own, so
-- that each of them is told the outcome.
create unique index approvals_same_in_conversation
  on approvals (tenant_id, requester, agent, server, tool, args_sha256,
                coalesce(conversation_id, '00000000-0000-0000-0000-000000000000'))
  where state in ('pending', 'approved', 'executing');
drop index approvals_same;
