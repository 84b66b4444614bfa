-- Which requests a person was shown in a conversation, with which arguments: a command there decides about nothing else.
create table shown_requests (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  conversation_id uuid not null,
  approval_id uuid not null,
  args_sha256 bytea not null check (length(args_sha256) = 32),
  -- whose answer showed it; no command that was sent before its end is about it
  run_id uuid not null,
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, approval_id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, approval_id) references approvals (tenant_id, id) on delete cascade
);
create index on shown_requests (tenant_id, approval_id);

alter table shown_requests enable row level security;
alter table shown_requests force row level security;
create policy tenant on shown_requests to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on shown_requests to chatelaine_tenant;
