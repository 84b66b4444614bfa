-- What becomes of a definition that waits: `held`, or used meanwhile (`told`), because it differs in nothing that the model
-- reads or that arguments mean. `recorded`: no rule lets anybody but admins use the tool, so that it does not wait.
-- `changed` names the fields that differ from what was accepted; of a new tool none.
alter table pinned_tools add column standing text not null default 'held';
alter table pinned_tools add column changed text[] not null default '{}';
grant select (standing) on pinned_tools to chatelaine_system;
alter table pinned_tools_of_all add column standing text not null default 'held';
alter table pinned_tools_of_all add column changed text[] not null default '{}';

-- When what is known of the tools of a server has changed, so that every replica reads it within a second, and when
-- somebody was told of it.
create table pinned_servers (
  tenant_id uuid not null,
  id uuid not null,
  agent text not null,
  server text not null,
  changed_at timestamptz not null,
  told_at timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, agent, server)
);
alter table pinned_servers add foreign key (tenant_id) references tenants (id) on delete cascade;
create index on pinned_servers (changed_at);
select lock_by_tenant('pinned_servers');
create policy system on pinned_servers for select to chatelaine_system using (true);
grant select (tenant_id, agent, server, changed_at) on pinned_servers to chatelaine_system;

create table pinned_servers_of_all (
  id uuid not null primary key,
  agent text not null,
  server text not null,
  changed_at timestamptz not null,
  told_at timestamptz,
  unique (agent, server)
);
create index on pinned_servers_of_all (changed_at);
alter table pinned_servers_of_all enable row level security;
alter table pinned_servers_of_all force row level security;
create policy system on pinned_servers_of_all to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on pinned_servers_of_all to chatelaine_system;
