-- Requests for consent of clients that call tools themselves, at `/mcp/{agent}`. They have no conversation: the client
-- makes the same call again and is given what came of it.
create table approval_results (
  tenant_id uuid not null,
  -- of the approval
  id uuid not null,
  -- what the server answered, or the program in its place; absent until then, and when nothing was sent
  result text,
  -- when the client was first told how the request ended
  collected_at timestamptz,
  primary key (tenant_id, id),
  foreign key (tenant_id, id) references approvals (tenant_id, id) on delete cascade
);
alter table approval_results enable row level security;
alter table approval_results force row level security;
create policy tenant on approval_results to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on approval_results to chatelaine_tenant;
