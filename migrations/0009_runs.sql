-- Runs that programs and other runs start. They form a tree: `root_run` is the one that began it, which also holds
-- what all of them were given and no model sees (`scope`, sealed), for as long as one of them is open.
alter table conversations
  -- the session whose run started this one; it goes when that one goes
  add column parent_session uuid,
  add constraint conversations_parent foreign key (tenant_id, parent_session)
    references conversations (tenant_id, id) on delete cascade;
create index on conversations (tenant_id, parent_session) where parent_session is not null;

alter table runs
  add column root_run uuid,
  add column parent_run uuid,
  add column depth int not null default 0,
  -- what the model is told besides the prompt
  add column params json,
  -- of a root: what the servers of the whole tree may be told, and no model
  add column scope bytea,
  add column has_scope boolean not null generated always as (scope is not null) stored,
  -- the session that is told when it has ended, and when it was
  add column callback_session uuid,
  add column called_back_at timestamptz,
  add column awaits_callback boolean not null generated always as (
    callback_session is not null and called_back_at is null) stored,
  -- SHA-256 of what opens the orchestrator to this run: one for each process that works on it
  add column token_hashes bytea[] not null default '{}',
  add check (scope is null or root_run = id);
create index on runs (tenant_id, root_run) where root_run is not null;
create index on runs (tenant_id, parent_run) where parent_run is not null;
-- work, across tenants
create index runs_unsettled on runs (created_at) where has_scope or awaits_callback;
grant select (root_run, has_scope, awaits_callback) on runs to chatelaine_system;

-- What was used on each day (UTC): outlives the conversations that it was used in.
create table usage (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  day date not null,
  user_id text not null,
  agent text not null,
  runs bigint not null default 0,
  input_tokens bigint not null default 0,
  output_tokens bigint not null default 0,
  primary key (tenant_id, id),
  unique (tenant_id, day, user_id, agent)
);
alter table usage enable row level security;
alter table usage force row level security;
create policy tenant on usage to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on usage to chatelaine_tenant;
