-- What runs add to the usage of a day. Every run inserts rows of its own here, so that the runs of one user do not wait
-- for each other's commit; a replica adds them up into `usage` a little later. A release that knows only `usage` runs
-- beside this one and sees what was used a few seconds late.
create table usage_additions (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  day date not null,
  user_id text not null,
  agent text not null,
  runs bigint not null default 0,
  input_tokens bigint not null default 0,
  output_tokens bigint not null default 0,
  primary key (tenant_id, id)
);
alter table usage_additions enable row level security;
alter table usage_additions force row level security;
create policy tenant on usage_additions to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy system on usage_additions for select to chatelaine_system using (true);
grant select, insert, update, delete on usage_additions to chatelaine_tenant;
grant select (tenant_id) on usage_additions to chatelaine_system;

-- Which conversations have news, asked once for all tenants.
create policy system on conversations for select to chatelaine_system using (true);
grant select (tenant_id, id, last_event) on conversations to chatelaine_system;
grant select (changed_at) on approvals to chatelaine_system;

-- A tenant's row is locked while a run is admitted against a limit. Locking wants the right to update a column; the
-- policy on the table lets no change through.
grant update (id) on tenants to chatelaine_tenant;
