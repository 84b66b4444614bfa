-- What all replicas know of the access tokens that the program gets for servers: one of them asks for a token, all
-- use it. A row has a lease instead of a transaction that stays open while somebody asks.
create table access_tokens (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- SHA-256 of whom it is asked, as whom and for what. No secret is in it: those would be guessed from their hash
  request bytea not null check (length(request) = 32),
  -- the token, with which secret it was got; null: nobody has got one yet
  sealed bytea,
  -- These records are not sealed anew by `rewrap`: one that cannot be opened is got anew
  tenant_key_version int generated always as (
    case when sealed is null then null
    else (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6) end
  ) stored,
  -- one higher with each token
  version bigint not null default 0,
  good_until timestamptz,
  -- who asks now, until when; a write with an older fence changes nothing
  fence bigint not null,
  lease_until timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, request),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version),
  check ((sealed is null) = (good_until is null))
);
alter table access_tokens enable row level security;
alter table access_tokens force row level security;
create policy tenant on access_tokens to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on access_tokens to chatelaine_tenant;

-- Whoever stops a run takes back what it and the runs below it have asked consent for. From that moment on it cannot
-- be approved; who sees the mark ends the request.
alter table approvals
  add column withdrawn_by text,
  add column withdrawn boolean not null generated always as (withdrawn_by is not null) stored;
create index approvals_withdrawn on approvals (id) where withdrawn and state = 'pending';
create index on approvals (tenant_id, run_id) where state in ('pending', 'approved');
grant select (withdrawn) on approvals to chatelaine_system;
