-- How OpenAI clients of a key are answered.
alter table api_keys
  add column keep_running boolean not null default false,
  add column tool_calls text not null default 'none' check (tool_calls in ('none', 'text', 'details'));

alter table conversations
  -- the last event that a client which keeps its own transcript was told of; null: as far as it has asked
  add column told_event bigint,
  add column archived_at timestamptz,
  add column pinned_at timestamptz;

-- Requests that a client may send again, and what was begun for them.
create table request_keys (
  tenant_id uuid not null,
  id uuid not null,
  user_id text not null,
  -- what the client calls the request
  key text not null,
  -- SHA-256 of its method, path and body
  digest bytea not null,
  conversation_id uuid not null,
  run_id uuid,
  message_id uuid,
  -- how often it was sent again
  repeats int not null default 0,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, user_id, key),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, run_id) references runs (tenant_id, id) on delete cascade
);
create index on request_keys (tenant_id, conversation_id);
create index on request_keys (tenant_id, run_id) where run_id is not null;

alter table request_keys enable row level security;
alter table request_keys force row level security;
create policy tenant on request_keys to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on request_keys to chatelaine_tenant;
