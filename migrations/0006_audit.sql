-- Reading the audit trail, and telling other programs what happens.

-- The newest first is the primary key read backwards: ids are UUIDv7. These are for whoever asks for less.
create index audit_by_actor on audit (tenant_id, actor, id);
create index audit_by_tool on audit (tenant_id, server, tool, id) where server is not null;
create index audit_by_run on audit (tenant_id, run_id) where run_id is not null;
create index audit_by_arguments on audit (tenant_id, args_sha256) where args_sha256 is not null;
-- Nearly every row is a call; what is not would have to be looked for among them.
create index audit_by_action on audit (tenant_id, action, id) where action <> 'tool.call';

-- What concerns no single tenant, or outlives one: the keys of the ring, tenants that came and went. For the
-- operator's eyes, and like a tenant's trail only ever added to.
create table operator_audit (
  id uuid primary key,
  at timestamptz not null default now(),
  actor text not null,
  action text not null,
  detail text
);
alter table operator_audit enable row level security;
alter table operator_audit force row level security;
create policy system on operator_audit to chatelaine_system using (true) with check (true);
grant select, insert on operator_audit to chatelaine_system;

-- Where a tenant wants to be told what happens.
create table webhooks (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- how many a tenant may have is how many slots there are
  slot smallint not null check (slot between 1 and 20),
  url text not null,
  -- names of events; one that ends in * stands for all that begin so
  events text[] not null check (cardinality(events) between 1 and 20),
  -- what the messages are signed with
  sealed bytea not null,
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  created_at timestamptz not null default now(),
  disabled_at timestamptz,
  last_delivered_at timestamptz,
  last_failed_at timestamptz,
  last_error text,
  primary key (tenant_id, id),
  unique (tenant_id, slot),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);

-- The outbox: written with what happened, in the same transaction, and sent afterwards.
create table webhook_deliveries (
  tenant_id uuid not null,
  id uuid not null,
  webhook_id uuid not null,
  event text not null,
  payload json not null,
  attempts int not null default 0,
  created_at timestamptz not null default now(),
  -- not before; moved ahead by whoever sends it, which is the lease. Null: nothing is to be sent any more
  next_attempt_at timestamptz,
  delivered_at timestamptz,
  last_status int,
  last_error text,
  primary key (tenant_id, id),
  foreign key (tenant_id, webhook_id) references webhooks (tenant_id, id) on delete cascade
);
create index webhook_deliveries_due on webhook_deliveries (next_attempt_at) where next_attempt_at is not null;
create index webhook_deliveries_of on webhook_deliveries (tenant_id, webhook_id, id);
create index webhook_deliveries_old on webhook_deliveries (created_at);

do $$
declare
  name text;
begin
  foreach name in array array['webhooks', 'webhook_deliveries'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format('create policy tenant on %I to chatelaine_tenant
      using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
      with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', name);
    execute format('grant select, insert, update, delete on %I to chatelaine_tenant', name);
  end loop;
end
$$;

-- To find what is to be sent, and what is old: no content.
create policy system on webhook_deliveries for select to chatelaine_system using (true);
grant select (tenant_id, id, webhook_id, created_at, next_attempt_at) on webhook_deliveries to chatelaine_system;
