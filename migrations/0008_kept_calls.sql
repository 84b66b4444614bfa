-- Calls with their arguments, of tenants that keep them so that their admins can try policies with them.
create table kept_calls (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  at timestamptz not null default statement_timestamp(),
  user_id text not null,
  agent text not null,
  server text not null,
  tool text not null,
  origin text not null,
  -- the arguments, and who the user was
  sealed bytea not null,
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  primary key (tenant_id, id),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);
select lock_by_tenant('kept_calls');
create index kept_calls_by_agent on kept_calls (tenant_id, agent, id);
create index kept_calls_by_user on kept_calls (tenant_id, user_id, id);
create index kept_calls_by_time on kept_calls (tenant_id, at);
create index kept_calls_by_key on kept_calls (tenant_id, tenant_key_version);
