-- What lets the schema be sharded by tenant (docs/scaling.md).

-- A unique index must hold the column that a table is sharded by. A link is 256 random bits, so no two tenants have
-- the same one; whoever opens a link has not said of which tenant it is, which is what the second index is for.
drop index flows_link;
create unique index flows_link on flows (tenant_id, link_hash) where link_hash is not null;
create index flows_by_link on flows (link_hash) where link_hash is not null;

-- For the migrations to come: locks a tenant's table by tenant, as the others are.
create function lock_by_tenant(name regclass) returns void language plpgsql as $$
begin
  execute format('alter table %s enable row level security', name);
  execute format('alter table %s force row level security', name);
  execute format('create policy tenant on %s to chatelaine_tenant
    using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
    with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', name);
  execute format('grant select, insert, update, delete on %s to chatelaine_tenant', name);
end
$$;
