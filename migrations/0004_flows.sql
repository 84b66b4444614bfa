-- A conversation in which somebody is configuring a personal server: where they are, until when.
create table flows (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  user_id text not null,
  locale text,
  agent text not null,
  -- pick: choosing a server; field: being asked for number `field` of it; page: entering values on our page;
  -- confirm: naming the code that the page showed
  step text not null check (step in ('pick', 'field', 'page', 'confirm')),
  server text,
  field int not null default 0,
  -- typed answers to this step are secret and are never kept as they are
  secret boolean not null default false,
  -- what was entered so far, sealed
  entered bytea,
  -- an answer on its way to the run that takes it in, sealed
  answer bytea,
  answer_run uuid,
  -- SHA-256 of the one-time link, and of the code that the page shows
  link_hash bytea,
  code_hash bytea,
  tries int not null default 0,
  expires_at timestamptz not null,
  primary key (tenant_id, id),
  -- a second flow replaces the first
  unique (tenant_id, conversation_id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  check ((step = 'pick') = (server is null))
);
create unique index flows_link on flows (link_hash) where link_hash is not null;

alter table flows enable row level security;
alter table flows force row level security;
create policy tenant on flows to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on flows to chatelaine_tenant;

-- Whoever opens a link has not said who they are.
create policy system on flows for select to chatelaine_system using (true);
grant select (tenant_id, id, link_hash, expires_at) on flows to chatelaine_system;

-- What was entered and never sent is forgotten.
create index on flows (expires_at);
