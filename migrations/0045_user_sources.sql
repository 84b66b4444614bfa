-- What vouches for users: an issuer by its `iss`, a frontend by the name of its key. A row stays when its issuer or key is
-- gone, so that the same users come back with it.
create table user_sources (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  kind text not null check (kind in ('issuer', 'frontend')),
  name text not null,
  -- what the ids of its users begin with
  prefix text not null,
  -- the first of the tenant, whose users have no prefix
  is_first boolean not null default false,
  -- whether an e-mail address counts without `email_verified`
  trust_email boolean not null default false,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, kind, name)
);
create unique index on user_sources (tenant_id) where is_first;

-- Until now all sources of a tenant shared its users.
insert into user_sources (tenant_id, id, kind, name, prefix, is_first)
select tenant_id, gen_random_uuid(), kind, name, '', row_number() over (partition by tenant_id order by created_at, kind, name) = 1
from (
  select tenant_id, 'issuer' as kind, issuer as name, min(created_at) as created_at from issuers group by 1, 3
  union all
  select tenant_id, 'frontend', name, min(created_at) from api_keys where kind = 'frontend' group by 1, 3
) sources;

alter table user_sources enable row level security;
alter table user_sources force row level security;
create policy tenant on user_sources to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on user_sources to chatelaine_tenant;
-- To learn whose request it is, before a tenant is known.
create policy system on user_sources for select to chatelaine_system using (true);
grant select on user_sources to chatelaine_system;
