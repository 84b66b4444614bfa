-- The newest verified claims of each person, which say what they may do with what waits. Written when they change and
-- at most every few minutes besides.
create table users (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  user_id text not null,
  claims json not null,
  locale text,
  -- when their token was issued, or when the key that speaks for them said so
  claims_at timestamptz not null,
  primary key (tenant_id, id),
  unique (tenant_id, user_id)
);
alter table users enable row level security;
alter table users force row level security;
create policy tenant on users to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on users to chatelaine_tenant;

-- Why a request was taken back; null: with its run.
alter table approvals add column withdrawn_cause text check (withdrawn_cause in ('signed_out', 'key_revoked'));

-- What ended a moment ago, for replicas that did not hear of it.
alter table sign_outs add column changed_at timestamptz not null default clock_timestamp();
create index on sign_outs (changed_at);
create policy system on sign_outs for select to chatelaine_system using (true);
grant select (tenant_id, user_id, changed_at) on sign_outs to chatelaine_system;
create index on api_keys (revoked_at) where revoked_at is not null;
