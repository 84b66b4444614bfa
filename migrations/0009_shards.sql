-- What a database that is sharded by tenant needs (crates/store/src/shards.rs). Citus distributes no table whose policy
-- has a subquery, sends a query that calls a function with queries to no shard, and takes on no second role in a
-- transaction.

create function audit_days_of(tenant uuid) returns int language sql stable as $$
  select audit_days from tenants where id = tenant
$$;
-- The role that deletes old lines of the trail writes the line that says so.
alter policy retention on audit
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid
         and at < now() - make_interval(days => audit_days_of(tenant_id)));
create policy retention_line on audit for insert to chatelaine_retention
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and action = 'retention.purged');
grant insert on audit to chatelaine_retention;

-- What is left of the principal of a request whose requester was erased. Of texts it is the same every time, which
-- Postgres does not say of `json_build_object`.
create function erased_principal(tenant uuid, requester text) returns json language sql immutable parallel safe as $$
  select json_build_object('tenant', tenant, 'user', requester, 'claims', '{}'::json, 'locale', null,
                           'authenticated', not starts_with(requester, 'guest:'))
$$;
drop function branch_path(uuid, uuid, int);
