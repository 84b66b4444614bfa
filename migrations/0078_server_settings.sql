-- What the admins of a tenant set for the servers of an agent or of a capability, beside what the files of the packs say.
create table server_settings (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  level text not null check (level in ('agent', 'capability')),
  -- the id of the agent, or the name of the capability
  owner text not null,
  -- the name of the server there, and the entry of the registry that it refers to
  server text not null,
  entry text not null,
  -- `ref`, `config`, `toolAccess` and `tools`, as a pack writes them
  definition json not null,
  -- one higher with each change
  version bigint not null check (version > 0),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, level, owner, server)
);
select lock_by_tenant('server_settings');
-- What the program itself may see, so that it asks once for all tenants whether what it has in memory is still so.
create policy system on server_settings for select to chatelaine_system using (true);
grant select (tenant_id, id, version) on server_settings to chatelaine_system;
