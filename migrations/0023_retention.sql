-- How long things are kept (src/app/platform/retention.rs).

alter table tenants
  -- in place of the installation's days, by kind: a number, or "unlimited"
  add column retention jsonb not null default '{}',
  -- lines of the audit trail that are older than this may be deleted; null: no line may be. The purge writes it, with a
  -- line in the trail
  add column audit_days int check (audit_days > 0);

-- Work that one replica does at a time.
create table jobs (
  name text primary key,
  lease_owner uuid,
  lease_until timestamptz,
  -- when it was done last
  done_at timestamptz
);
alter table jobs enable row level security;
alter table jobs force row level security;
create policy system on jobs to chatelaine_system using (true) with check (true);
grant select, insert, update on jobs to chatelaine_system;

-- The audit trail is only ever added to by the roles that work. Old lines are deleted by a role of its own, which sees
-- of one tenant the lines that are older than `tenants.audit_days`, and their ids and times only. Whatever a statement
-- of this role says, it deletes no other line.
do $$
begin
  if not exists (select from pg_roles where rolname = 'chatelaine_retention') then
    begin
      create role chatelaine_retention nologin;
    exception when duplicate_object or unique_violation then null;
    end;
  end if;
  begin
    execute format('grant chatelaine_retention to %I', current_user);
  -- The operator may have made the role and granted it.
  exception when unique_violation or insufficient_privilege then null;
  end;
end
$$;
create policy retention on tenants for select to chatelaine_retention
  using (id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select (id, audit_days) on tenants to chatelaine_retention;
create policy retention on audit to chatelaine_retention
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid
         and at < now() - make_interval(days => (select t.audit_days from tenants t where t.id = tenant_id)))
  with check (false);
grant select (tenant_id, id, at), delete on audit to chatelaine_retention;

-- The arguments of a call are erased to the seven bytes that say what they were sealed with.
create index approvals_with_arguments on approvals (tenant_id, id) where length(sealed) > 7;
-- A conversation with a waiting request is kept.
create index approvals_of_conversation on approvals (tenant_id, conversation_id)
  where state in ('pending', 'approved', 'executing');
