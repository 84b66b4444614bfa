-- What servers said of their tools when somebody accepted it, and what waits to be accepted. A server of which the
-- connection serves every tenant is known here once, and what one tenant alone has accepted of it is a row of that tenant.
create table pinned_tools (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  agent text not null,
  server text not null,
  tool text not null,
  -- SHA-256 of the definition, in hex
  hash text not null check (length(hash) = 64),
  definition text not null,
  seen_at timestamptz not null default now(),
  -- null: it waits
  accepted_at timestamptz,
  -- how many definitions of the tool have waited since one was accepted
  changes integer not null default 1,
  primary key (tenant_id, id),
  unique (tenant_id, agent, server, tool, hash)
);
select lock_by_tenant('pinned_tools');

create table pinned_tools_of_all (
  id uuid not null primary key,
  agent text not null,
  server text not null,
  tool text not null,
  hash text not null check (length(hash) = 64),
  definition text not null,
  seen_at timestamptz not null default now(),
  accepted_at timestamptz,
  changes integer not null default 1,
  unique (agent, server, tool, hash)
);
alter table pinned_tools_of_all enable row level security;
alter table pinned_tools_of_all force row level security;
create policy system on pinned_tools_of_all to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on pinned_tools_of_all to chatelaine_system;
create policy tenant on pinned_tools_of_all for select to chatelaine_tenant using (true);
grant select on pinned_tools_of_all to chatelaine_tenant;
-- For the metrics.
create policy system on pinned_tools for select to chatelaine_system using (true);
grant select (tenant_id, accepted_at) on pinned_tools to chatelaine_system;
