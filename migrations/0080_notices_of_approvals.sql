-- Which requests a person has been told of at the head of an answer: each once, wherever they chat.
create table approval_notices (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  user_id text not null,
  approval_id uuid not null,
  primary key (tenant_id, id),
  unique (tenant_id, user_id, approval_id),
  foreign key (tenant_id, approval_id) references approvals (tenant_id, id) on delete cascade
);
create index on approval_notices (tenant_id, approval_id);

alter table approval_notices enable row level security;
alter table approval_notices force row level security;
create policy tenant on approval_notices to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on approval_notices to chatelaine_tenant;

alter table approval_votes
  -- when the voter was told how the call ended
  add column outcome_told_at timestamptz;
-- What has ended before this release is no news.
update approval_votes v set outcome_told_at = statement_timestamp()
from approvals a where a.tenant_id = v.tenant_id and a.id = v.approval_id and a.finished_at is not null;
create index approval_votes_untold on approval_votes (tenant_id, approver)
  where outcome_told_at is null and choice = 'approve';
