-- How a call ended whose line of the audit trail was written before it was sent. Like the trail only ever added to; a line
-- without an outcome here says itself how it ended, or that nobody knows.
create table audit_outcomes (
  tenant_id uuid not null,
  -- of the line
  id uuid not null,
  outcome text not null,
  primary key (tenant_id, id),
  foreign key (tenant_id, id) references audit (tenant_id, id) on delete cascade
);
alter table audit_outcomes enable row level security;
alter table audit_outcomes force row level security;
create policy tenant on audit_outcomes to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on audit_outcomes to chatelaine_tenant;
