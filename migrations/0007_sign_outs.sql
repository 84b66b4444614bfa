-- Who signed out, and up to which tokens that counts: a token says when it was issued (`iat`), or at least
-- when it ends (`exp`).
create table sign_outs (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  user_id text not null,
  issued_until bigint not null,
  expires_until bigint not null,
  primary key (tenant_id, id),
  unique (tenant_id, user_id)
);
alter table sign_outs enable row level security;
alter table sign_outs force row level security;
create policy tenant on sign_outs to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on sign_outs to chatelaine_tenant;

-- What a user has open, to end it.
create index on runs (tenant_id, user_id) where status in ('queued', 'running');
create index on flows (tenant_id, user_id);
