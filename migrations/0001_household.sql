-- Two roles that nobody logs in as. A transaction takes one of them on (store.rs):
--   chatelaine_tenant  sees the rows of the tenant that the transaction names, and nothing else;
--   chatelaine_system  finds work and callers across tenants: the columns granted below, never content.
-- Roles belong to the cluster, so another database (or a concurrent migration) may have made them.
do $$
declare
  name text;
begin
  foreach name in array array['chatelaine_tenant', 'chatelaine_system'] loop
    begin
      execute format('create role %I nologin', name);
    exception when duplicate_object or unique_violation then null;
    end;
    begin
      execute format('grant %I to %I', name, current_user);
    exception when unique_violation then null;
    end;
  end loop;
end
$$;

create table tenants (
  id uuid primary key,
  name text not null constraint tenants_name unique check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  -- the packs that serve this tenant; null: every pack
  agents text[],
  -- whether somebody without a token may ask for a guest token
  guests boolean not null default false,
  created_at timestamptz not null default now()
);

-- Who may vouch for users of a tenant. Secrets are not kept here: an HMAC key stays in the environment.
create table issuers (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  issuer text not null,
  audience text not null,
  algorithm text not null,
  jwks_url text,
  public_key text,
  secret_env text,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  constraint issuers_issuer_audience unique (issuer, audience),
  check (num_nonnulls(jwks_url, public_key, secret_env) = 1)
);

create table api_keys (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  name text not null,
  -- the first characters of the key, to find the row; the key itself is only kept as a hash
  prefix text not null unique,
  hash bytea not null,
  scopes text[] not null,
  -- two keys of one name may be live at once, so that one can replace the other
  slot smallint not null default 0 check (slot in (0, 1)),
  -- whom the key speaks for: its own claims, the users named by headers (frontend), or one guest
  kind text not null check (kind in ('service', 'frontend', 'guest')),
  claims jsonb not null default '{}',
  frontend jsonb,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  primary key (tenant_id, id),
  check ((kind = 'frontend') = (frontend is not null))
);
create index on api_keys (tenant_id, name);
create unique index api_keys_two_live on api_keys (tenant_id, name, slot) where revoked_at is null and kind <> 'guest';

create table conversations (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  agent text not null,
  user_id text not null,
  title text not null default '',
  -- how a frontend without our ids finds the conversation again (its own chat id, or a digest of the transcript)
  external_key text,
  -- counters of this conversation; taken under its row lock
  last_seq bigint not null default 0,
  last_event bigint not null default 0,
  last_run bigint not null default 0,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id)
);
create index on conversations (tenant_id, user_id, id desc);
create index on conversations (tenant_id, user_id, agent, external_key) where external_key is not null;

create table runs (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  -- position among the runs of the conversation
  ordinal bigint not null,
  agent text not null,
  user_id text not null,
  -- who asked, as verified then: another replica may take the run over
  principal json not null,
  -- 'turn' asks the model, 'command' does not
  kind text not null check (kind in ('turn', 'command')),
  status text not null check (status in ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  error text,
  steps int not null default 0,
  attempt int not null default 0,
  input_tokens bigint not null default 0,
  output_tokens bigint not null default 0,
  usage_estimated boolean not null default false,
  cancel_requested boolean not null default false,
  -- who works on it, until when; a write with an older fence is refused
  lease_owner uuid,
  lease_until timestamptz,
  fence bigint not null default 0,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  finished_at timestamptz,
  primary key (tenant_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  check ((status = 'running') = (lease_owner is not null))
);
-- one turn works on a conversation at a time, and one waits; commands need no turn
create unique index runs_one_turn_running on runs (tenant_id, conversation_id) where status = 'running' and kind = 'turn';
create unique index runs_one_turn_queued on runs (tenant_id, conversation_id) where status = 'queued' and kind = 'turn';
create index runs_open on runs (created_at) where status in ('queued', 'running');
create index on runs (tenant_id, conversation_id);

create table messages (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  seq bigint not null,
  run_id uuid,
  run_ordinal bigint not null,
  role text not null check (role in ('user', 'assistant', 'tool', 'system')),
  -- json, not jsonb: what models and servers say is kept as it came, and may hold what jsonb takes for no
  -- text or number (a NUL, half of a surrogate pair, 1e999999)
  parts json not null,
  -- greetings, commands and their answers are for people only
  for_model boolean not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, seq),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, run_id) references runs (tenant_id, id) on delete cascade
);
create index on messages (tenant_id, conversation_id, run_ordinal, seq);
create index on messages (tenant_id, run_id) where run_id is not null;

-- What listeners are told and can ask for again (Last-Event-ID).
create table events (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  seq bigint not null,
  kind text not null check (kind in ('message', 'run')),
  message_id uuid,
  run_id uuid,
  run_status text,
  run_error text,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, seq),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, message_id) references messages (tenant_id, id) on delete cascade
);
create index on events (tenant_id, message_id) where message_id is not null;

-- Discovered tools, so that a restart does not lose them while a server is down.
create table catalogs (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  agent text not null,
  server text not null,
  -- whose view it is: '' for a shared server
  scope text not null default '',
  version text not null,
  tools json not null,
  dropped json not null,
  fetched_at timestamptz not null,
  primary key (tenant_id, id),
  unique (tenant_id, agent, server, scope)
);

-- Who did what. Rows are only ever added.
create table audit (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  at timestamptz not null,
  actor text not null,
  action text not null,
  agent text,
  run_id uuid,
  server text,
  tool text,
  args_sha256 bytea,
  outcome text not null,
  detail text,
  primary key (tenant_id, id)
);

do $$
declare
  name text;
begin
  foreach name in array array['issuers', 'api_keys', 'conversations', 'runs', 'messages', 'events', 'catalogs', 'audit'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format('create policy tenant on %I to chatelaine_tenant
      using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
      with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', name);
    if name = 'audit' then
      execute format('grant select, insert on %I to chatelaine_tenant', name);
    else
      execute format('grant select, insert, update, delete on %I to chatelaine_tenant', name);
    end if;
  end loop;
end
$$;

alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants to chatelaine_tenant using (id = nullif(current_setting('app.tenant_id', true), '')::uuid) with check (false);
create policy system on tenants to chatelaine_system using (true) with check (true);
grant select on tenants to chatelaine_tenant;
grant select, insert, update, delete on tenants to chatelaine_system;

-- To learn whose request or whose work it is, before a tenant is known.
create policy system on issuers for select to chatelaine_system using (true);
grant select on issuers to chatelaine_system;
create policy system on api_keys for select to chatelaine_system using (true);
grant select on api_keys to chatelaine_system;
create policy system on runs for select to chatelaine_system using (true);
grant select (tenant_id, id, conversation_id, kind, status, lease_until, created_at) on runs to chatelaine_system;
