-- Keys and what they seal. A key of the ring (KEK) never comes here, only a value that tells it from another;
-- it wraps the tenants' keys, and those seal records (src/vault.rs).

-- The keys of the ring that replicas were started with. They are no tenant's.
create table keks (
  id text primary key,
  check_value bytea not null check (length(check_value) = 16),
  -- added: known, never used; sealing: wraps new tenant keys; opening: wrapped older ones; retired: not needed
  state text not null check (state in ('added', 'sealing', 'opening', 'retired')),
  created_at timestamptz not null default now(),
  promoted_at timestamptz,
  retired_at timestamptz
);
create unique index keks_one_sealing on keks (state) where state = 'sealing';

-- Which replica has which keys: one that a living replica lacks must not begin to seal.
create table key_holders (
  replica uuid primary key,
  keks text[] not null,
  seen_at timestamptz not null default now()
);

-- The foreign key is what makes retiring safe: a key that wraps anything cannot be taken away.
create table tenant_keys (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  version int not null check (version > 0),
  kek_id text not null references keks (id),
  wrapped bytea not null,
  state text not null check (state in ('sealing', 'opening')),
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, version)
);
create unique index tenant_keys_one_sealing on tenant_keys (tenant_id) where state = 'sealing';
create index on tenant_keys (kek_id);

-- What users entered for personal servers.
create table credentials (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  agent text not null,
  server text not null,
  user_id text not null,
  -- one higher with each replacement
  generation bigint not null check (generation > 0),
  -- rejected: the server refused it; quarantined: it cannot be opened
  state text not null check (state in ('active', 'rejected', 'quarantined')),
  reason text,
  sealed bytea not null,
  -- read out of the envelope, so that the two cannot disagree
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- when the server last accepted it
  verified_at timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, agent, server, user_id),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);
create index on credentials (tenant_id, user_id);

do $$
declare
  name text;
begin
  foreach name in array array['tenant_keys', 'credentials'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format('create policy tenant on %I to chatelaine_tenant
      using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
      with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', name);
    execute format('grant select, insert, update, delete on %I to chatelaine_tenant', name);
    execute format('create policy system on %I for select to chatelaine_system using (true)', name);
  end loop;
  foreach name in array array['keks', 'key_holders'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format('create policy system on %I to chatelaine_system using (true) with check (true)', name);
    execute format('grant select, insert, update, delete on %I to chatelaine_system', name);
  end loop;
end
$$;

-- To know what a key is still needed for, and whose records are sealed with an old one: numbers, no content.
grant select (tenant_id, version, kek_id, state) on tenant_keys to chatelaine_system;
grant select (tenant_id, id, tenant_key_version) on credentials to chatelaine_system;

-- A tenant's new key names the one that wraps it.
create policy tenant on keks for select to chatelaine_tenant using (true);
grant select (id, state) on keks to chatelaine_tenant;
