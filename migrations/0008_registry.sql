-- The registry of servers: what a tenant's admins define, and packs refer to by `entry`.
create table mcp_servers (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  entry text not null check (entry ~ '^[a-z][a-z0-9_-]{1,59}$'),
  name text not null,
  -- as the document writes it, without the values that are sealed
  definition json not null,
  sealed bytea,
  tenant_key_version int generated always as (
    case when sealed is null then null
    else (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6) end
  ) stored,
  -- one higher with each change
  version bigint not null check (version > 0),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, entry),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);
create index on mcp_servers (tenant_id, name, entry);

-- Secrets that entries name: `{"$secret": "name"}`. They are written and never read back.
create table secrets (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  name text not null,
  sealed bytea not null,
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  version bigint not null check (version > 0),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, name),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);

do $$
declare
  name text;
begin
  foreach name in array array['mcp_servers', 'secrets'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format('create policy tenant on %I to chatelaine_tenant
      using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
      with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', name);
    execute format('grant select, insert, update, delete on %I to chatelaine_tenant', name);
  end loop;
end
$$;
