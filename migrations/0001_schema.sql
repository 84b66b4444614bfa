-- The whole schema, table by table: what a table holds, then its indexes and who may see it. Later files change it.
-- Every table of a tenant begins with `tenant_id`, in its primary key and in its foreign keys, so that row-level
-- security and sharding by tenant fit. `sealed` and columns like it hold envelopes (crates/store/src/vault), whose
-- bytes 3 to 6 are the version of the tenant's key; a generated column reads it out, so that the two cannot
-- disagree.

-- Roles that nobody logs in as. A transaction takes one of them on (crates/store/src/lib.rs):
--   chatelaine_tenant     sees the rows of the tenant that the transaction names, and nothing else;
--   chatelaine_system     finds work and callers across tenants: the columns granted below, never content;
--   chatelaine_retention  deletes old lines of the audit trail.
-- Roles belong to the cluster, so another database, a concurrent migration or the operator may have made and
-- granted them.
do $$
declare
  name text;
begin
  foreach name in array array['chatelaine_tenant', 'chatelaine_system', 'chatelaine_retention'] loop
    if not exists (select from pg_roles where rolname = name) then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then null;
      end;
    end if;
    begin
      execute format('grant %I to %I', name, current_user);
    exception when unique_violation or insufficient_privilege then null;
    end;
  end loop;
end
$$;

-- Locks a tenant's table by tenant: a transaction sees and writes the rows of the tenant that it names, and no
-- others.
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

-- Tenants, and who may speak for their users ----------------------------------------------------------------------

-- The organisations. Nothing crosses from one to another.
create table tenants (
  id uuid primary key,
  name text not null constraint tenants_name unique check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  -- the packs that serve this tenant; null: every pack
  agents text[],
  -- whether somebody without a token may ask for a guest token
  guests boolean not null default false,
  created_at timestamptz not null default now(),
  -- what people call it; null: its name
  display_name text,
  -- since then its tokens and keys are refused
  suspended_at timestamptz,
  -- in place of the installation's limits of a day, by their names: a number, or "unlimited"
  limits jsonb not null default '{}',
  -- in place of the installation's days, by kind: a number, or "unlimited"
  retention jsonb not null default '{}',
  -- lines of the audit trail that are older than this may be deleted; null: no line may be. The purge writes it,
  -- with a line in the trail
  audit_days int check (audit_days > 0)
);
alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants to chatelaine_tenant
  using (id = nullif(current_setting('app.tenant_id', true), '')::uuid) with check (false);
grant select on tenants to chatelaine_tenant;
-- A tenant's row is locked while a run is admitted against a limit. Locking wants the right to update a column; the
-- policy lets no change through.
grant update (id) on tenants to chatelaine_tenant;
create policy system on tenants to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on tenants to chatelaine_system;
create policy retention on tenants for select to chatelaine_retention
  using (id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select (id, audit_days) on tenants to chatelaine_retention;

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
  -- whether an admin of the tenant wrote the address of the key set, rather than the operator: then it is fetched
  -- under the rules for addresses of tenants; null: nobody noted it
  of_tenant boolean,
  primary key (tenant_id, id),
  constraint issuers_issuer_audience unique (issuer, audience),
  check (num_nonnulls(jwks_url, public_key, secret_env) = 1)
);
select lock_by_tenant('issuers');
-- To learn whose request it is, before a tenant is known.
create policy system on issuers for select to chatelaine_system using (true);
grant select on issuers to chatelaine_system;

-- What vouches for users: an issuer by its `iss`, a frontend by the name of its key. A row stays when its issuer or
-- key is gone, so that the same users come back with it.
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
select lock_by_tenant('user_sources');
create policy system on user_sources for select to chatelaine_system using (true);
grant select on user_sources to chatelaine_system;

-- Keys of programs that call the API.
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
  -- how OpenAI clients of the key are answered: whether a run goes on without its client, and how calls are shown
  keep_running boolean not null default false,
  tool_calls text not null default 'none' check (tool_calls in ('none', 'text', 'details')),
  primary key (tenant_id, id),
  check ((kind = 'frontend') = (frontend is not null))
);
create index on api_keys (tenant_id, name);
create unique index api_keys_two_live on api_keys (tenant_id, name, slot)
  where revoked_at is null and kind <> 'guest';
create index on api_keys (revoked_at) where revoked_at is not null;
select lock_by_tenant('api_keys');
create policy system on api_keys for select to chatelaine_system using (true);
grant select on api_keys to chatelaine_system;

-- The newest verified claims of each person, which say what they may do with what waits. Written when they change
-- and at most every few minutes besides.
create table users (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  user_id text not null,
  claims json not null,
  locale text,
  -- when their token was issued, or when the key that speaks for them said so
  claims_at timestamptz not null,
  -- when other claims of the person were written last, for the replicas that remember the ones before
  changed_at timestamptz,
  -- what the id and the name of the person look like, to find those whose texts are read as the same; null until
  -- the person comes back
  id_look text,
  name_look text,
  primary key (tenant_id, id),
  unique (tenant_id, user_id)
);
create index on users (changed_at) where changed_at is not null;
create index on users (tenant_id, id_look);
create index on users (tenant_id, name_look);
select lock_by_tenant('users');
create policy system on users for select to chatelaine_system using (true);
grant select (tenant_id, user_id, changed_at) on users to chatelaine_system;

-- Who signed out, and up to which tokens that counts: a token says when it was issued (`iat`), or at least
-- when it ends (`exp`).
create table sign_outs (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  user_id text not null,
  issued_until bigint not null,
  expires_until bigint not null,
  -- when the row was written, for replicas that did not hear of it
  changed_at timestamptz not null default clock_timestamp(),
  -- when somebody else ended the user's sessions last: what they said before does not count any more
  others_at timestamptz,
  -- since when the user is blocked, and who did it; null: they are not
  blocked_at timestamptz,
  blocked_by text,
  primary key (tenant_id, id),
  unique (tenant_id, user_id)
);
create index on sign_outs (changed_at);
select lock_by_tenant('sign_outs');
create policy system on sign_outs for select to chatelaine_system using (true);
grant select (tenant_id, user_id, changed_at) on sign_outs to chatelaine_system;

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
  -- what the user has stored on the day: messages, what tools brought back, attachments
  bytes bigint not null default 0,
  -- the part of `input_tokens` that the provider had kept from an earlier request
  cached_input_tokens bigint not null default 0,
  primary key (tenant_id, id),
  unique (tenant_id, day, user_id, agent)
);
-- Who was seen, and what one of them used.
create index on usage (tenant_id, user_id, day);
select lock_by_tenant('usage');

-- What runs add to the usage of a day. Every run inserts rows of its own here, so that the runs of one user do not
-- wait for each other's commit; a replica adds them up into `usage` a little later.
create table usage_additions (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  day date not null,
  user_id text not null,
  agent text not null,
  runs bigint not null default 0,
  input_tokens bigint not null default 0,
  output_tokens bigint not null default 0,
  bytes bigint not null default 0,
  -- the part of `input_tokens` that the provider had kept from an earlier request
  cached_input_tokens bigint not null default 0,
  primary key (tenant_id, id)
);
-- What one user has added is asked with each message.
create index usage_additions_of_user on usage_additions (tenant_id, user_id, day);
select lock_by_tenant('usage_additions');
create policy system on usage_additions for select to chatelaine_system using (true);
grant select (tenant_id) on usage_additions to chatelaine_system;

-- Keys, and what they seal ----------------------------------------------------------------------------------------

-- The keys of the ring that replicas were started with. They are no tenant's. A key never comes here, only a value
-- that tells it from another; it wraps the tenants' keys.
create table keks (
  id text primary key,
  check_value bytea not null check (length(check_value) = 16),
  -- added: known, never used; sealing: wraps new tenant keys; opening: wrapped older ones; retired: not needed
  state text not null check (state in ('added', 'sealing', 'opening', 'retired')),
  created_at timestamptz not null default now(),
  promoted_at timestamptz,
  retired_at timestamptz
);
create unique index keks_one_sealing on keks (state) where state = 'sealing';
alter table keks enable row level security;
alter table keks force row level security;
-- A tenant's new key names the one that wraps it.
create policy tenant on keks for select to chatelaine_tenant using (true);
grant select (id, state) on keks to chatelaine_tenant;
create policy system on keks to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on keks to chatelaine_system;

-- Which replica has which keys: one that a living replica lacks must not begin to seal.
create table key_holders (
  replica uuid primary key,
  keks text[] not null,
  seen_at timestamptz not null default now()
);
alter table key_holders enable row level security;
alter table key_holders force row level security;
create policy system on key_holders to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on key_holders to chatelaine_system;

-- The keys of tenants, which seal records (crates/store/src/vault). Records are sealed anew with the newest version
-- of their tenant's key wherever they are. The foreign key is what makes retiring safe: a key that wraps anything
-- cannot be taken away.
create table tenant_keys (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  version int not null check (version > 0),
  kek_id text not null references keks (id),
  wrapped bytea not null,
  state text not null check (state in ('sealing', 'opening')),
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, version)
);
create unique index tenant_keys_one_sealing on tenant_keys (tenant_id) where state = 'sealing';
create index on tenant_keys (kek_id);
select lock_by_tenant('tenant_keys');
-- To know what a key is still needed for, and whose records are sealed with an old one: numbers, no content.
create policy system on tenant_keys for select to chatelaine_system using (true);
grant select (tenant_id, version, kek_id, state) on tenant_keys to chatelaine_system;

-- Servers: the registry, what admins set, and what servers list ---------------------------------------------------

-- The registry of servers: what a tenant's admins define, and packs refer to by `entry`.
create table mcp_servers (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  entry text not null check (entry ~ '^[a-z][a-z0-9_-]{1,59}$'),
  name text not null,
  -- as the document writes it, without the values that are sealed
  definition json not null,
  sealed bytea,
  tenant_key_version int generated always as (
    case when sealed is null then null
    else (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16)
      | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6) end
  ) stored,
  -- one higher with each change
  version bigint not null check (version > 0),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, entry),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);
create index on mcp_servers (tenant_id, name, entry);
select lock_by_tenant('mcp_servers');
create policy system on mcp_servers for select to chatelaine_system using (true);
grant select (tenant_id, id, version) on mcp_servers to chatelaine_system;

-- Secrets that entries name: `{"$secret": "name"}`. They are written and never read back.
create table secrets (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  name text not null,
  sealed bytea not null,
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  version bigint not null check (version > 0),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- the setting (`server_settings.id`) that the secret was typed for: the secret is removed with it
  setting_id uuid,
  primary key (tenant_id, id),
  unique (tenant_id, name),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);
select lock_by_tenant('secrets');
create policy system on secrets for select to chatelaine_system using (true);
grant select (tenant_id, id, version) on secrets to chatelaine_system;

-- What the admins of a tenant set for the servers of an agent or of a capability, beside what the files of the
-- packs say.
create table server_settings (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  level text not null check (level in ('agent', 'capability')),
  -- the id of the agent, or the name of the capability
  owner text not null,
  -- the name of the server there, and the entry of the registry that it refers to
  server text not null,
  entry text not null,
  -- `ref`, `config`, `toolAccess` and `tools`, as a pack writes them
  definition json not null,
  -- one higher with each change
  version bigint not null check (version > 0),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, level, owner, server)
);
select lock_by_tenant('server_settings');
create policy system on server_settings for select to chatelaine_system using (true);
grant select (tenant_id, id, version) on server_settings to chatelaine_system;

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
  prompts json not null default '[]',
  -- what the server said of how its lists may be kept: for how long, and whether users may share them; null:
  -- nothing
  ttl_ms bigint check (ttl_ms >= 0),
  cache_scope text check (cache_scope in ('public', 'private')),
  primary key (tenant_id, id),
  unique (tenant_id, agent, server, scope)
);
select lock_by_tenant('catalogs');

-- The tools and prompts of servers whose one connection serves every tenant, by the pack that names the server.
create table catalogs_of_all (
  agent text not null,
  server text not null,
  version text not null,
  tools json not null,
  prompts json not null,
  dropped json not null,
  fetched_at timestamptz not null,
  ttl_ms bigint,
  cache_scope text check (cache_scope in ('public', 'private')),
  primary key (agent, server)
);
alter table catalogs_of_all enable row level security;
alter table catalogs_of_all force row level security;
create policy system on catalogs_of_all to chatelaine_system using (true) with check (true);
grant select, insert, update on catalogs_of_all to chatelaine_system;

-- Credentials for servers -----------------------------------------------------------------------------------------

-- What users entered for personal servers.
create table credentials (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  agent text not null,
  server text not null,
  user_id text not null,
  -- one higher with each replacement
  generation bigint not null check (generation > 0),
  -- rejected: the server refused it; quarantined: it cannot be opened
  state text not null check (state in ('active', 'rejected', 'quarantined')),
  reason text,
  sealed bytea not null,
  -- read out of the envelope, so that the two cannot disagree
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- when the server last accepted it
  verified_at timestamptz,
  -- the generation of which the user was told that it needs their attention: once
  told_generation bigint not null default 0,
  -- of a sign-in (OAuth 2.1) the tokens are sealed, with what is needed to refresh them: who gave the tokens; null:
  -- what is sealed was entered in fields
  issuer text,
  -- what the tokens are good for, and what the server asked for since, each with blanks between
  scopes text,
  wanted_scopes text,
  -- one higher with each refresh; the generation stays, and so do the connections made with it
  token_version bigint not null default 0,
  -- when the tokens are refreshed, and when they end; null: nobody knows
  refresh_at timestamptz,
  tokens_end_at timestamptz,
  -- which replica refreshes them
  fence bigint not null default 0,
  lease_until timestamptz,
  -- when the user signed in at the server; a refresh changes the tokens and not this
  signed_in_at timestamptz,
  -- what the user entered last for a server that does not judge a credential before its first call: what was there
  -- before stays until that call succeeds
  candidate bytea,
  -- null: there is none
  candidate_generation bigint,
  candidate_key_version int generated always as (
    (get_byte(candidate, 3) << 24) | (get_byte(candidate, 4) << 16)
    | (get_byte(candidate, 5) << 8) | get_byte(candidate, 6)
  ) stored,
  -- the highest generation that was ever given, to a candidate that was refused, too
  last_generation bigint not null default 0,
  -- a candidate was refused, and its user was not told yet
  candidate_refused boolean not null default false,
  -- answers to a refresh that may mean its end: how many, and since when
  doubtful_refusals int not null default 0,
  doubtful_since timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, agent, server, user_id),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);
create index on credentials (tenant_id, user_id);
select lock_by_tenant('credentials');
create policy system on credentials for select to chatelaine_system using (true);
grant select (tenant_id, id, agent, server, user_id, generation, state, tenant_key_version, updated_at,
  verified_at, told_generation, candidate_generation, candidate_key_version, last_generation, candidate_refused)
  on credentials to chatelaine_system;

-- Whether a server tells a false credential from a right one in the test of a credential.
create table credential_judges (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  agent text not null,
  server text not null,
  -- SHA-256 of what is asked: the address, and the tool that tests
  asked bytea not null,
  -- null: it is being asked, or the answer said nothing
  judges boolean,
  asked_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, agent, server)
);
select lock_by_tenant('credential_judges');

-- The program as a client that an authorization server has registered.
create table oauth_clients (
  tenant_id uuid not null,
  id uuid not null,
  issuer text not null,
  redirect_uri text not null,
  sealed bytea not null,
  created_at timestamptz not null default now(),
  -- the last sign-in with it, and the last one that came back
  begun_at timestamptz,
  came_back_at timestamptz,
  -- the authorization server said that it does not know it
  unknown_since timestamptz,
  -- when it was last replaced by another one, or was about to be
  registered_again_at timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, issuer, redirect_uri)
);
select lock_by_tenant('oauth_clients');

-- What all replicas know of the access tokens that the program gets for servers: one of them asks for a token, all
-- use it. A row has a lease instead of a transaction that stays open while somebody asks.
create table access_tokens (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- SHA-256 of whom it is asked, as whom and for what. No secret is in it: those would be guessed from their hash
  request bytea not null check (length(request) = 32),
  -- the token, with which secret it was got; null: nobody has got one yet
  sealed bytea,
  -- These records are not sealed anew by `rewrap`: one that cannot be opened is got anew
  tenant_key_version int generated always as (
    case when sealed is null then null
    else (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16)
      | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6) end
  ) stored,
  -- one higher with each token
  version bigint not null default 0,
  good_until timestamptz,
  -- who asks now, until when; a write with an older fence changes nothing
  fence bigint not null,
  lease_until timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, request),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version),
  check ((sealed is null) = (good_until is null))
);
select lock_by_tenant('access_tokens');

-- Conversations ---------------------------------------------------------------------------------------------------

-- A user's conversations with an agent.
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
  -- the session whose run started this one; it goes when that one goes
  parent_session uuid,
  -- the last event that a client which keeps its own transcript was told of; null: as far as it has asked
  told_event bigint,
  archived_at timestamptz,
  pinned_at timestamptz,
  -- who gave the conversation its title; message: the first message did, and the agent's model may make a better
  -- one
  titled_by text not null default 'user' check (titled_by in ('user', 'message', 'model')),
  -- the branch that is shown and goes on, and the number of the newest one
  branch int not null default 0,
  last_branch int not null default 0,
  primary key (tenant_id, id),
  constraint conversations_parent foreign key (tenant_id, parent_session)
    references conversations (tenant_id, id) on delete cascade
);
create index on conversations (tenant_id, user_id, id desc);
create index on conversations (tenant_id, user_id, agent, external_key) where external_key is not null;
create index on conversations (tenant_id, parent_session) where parent_session is not null;
-- What users of chats see: pinned ones first, then the newest.
create index on conversations (tenant_id, user_id, (pinned_at is not null) desc, id desc);
select lock_by_tenant('conversations');
create policy system on conversations for select to chatelaine_system using (true);
grant select (tenant_id, id, last_event) on conversations to chatelaine_system;

-- Versions of a conversation. A branch begins where a message was edited or asked again: it has the messages of its
-- parent with a number below `from_seq`, and those with its own number. Branch 0 is the one that every conversation
-- begins with; it has no row.
create table branches (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  number int not null check (number > 0),
  parent int not null,
  from_seq bigint not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, number),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
select lock_by_tenant('branches');
-- Which messages a branch shows: of each branch on the way to the root, those with a number below `upto`.
create function branch_path(tenant uuid, conversation uuid, wanted int)
returns table (branch int, upto bigint) language sql stable as $$
  with recursive path (branch, upto) as (
    select wanted, 9223372036854775807
    union all
    select b.parent, b.from_seq from path
    join branches b on b.tenant_id = tenant and b.conversation_id = conversation and b.number = path.branch
  )
  select branch, upto from path
$$;

-- What is said in a conversation. A row goes with its conversation; what else it names has no foreign key, since to
-- look that up for each new row was a tenth of Postgres's work for a turn. Whoever deletes does it in order: events
-- before their messages, and a run only when no message names it any more. The same holds for the events.
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
  -- the number of its branch
  branch int not null default 0,
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, seq),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on messages (tenant_id, conversation_id, run_ordinal, seq);
create index on messages (tenant_id, run_id) where run_id is not null;
-- The words that were said in a message, for the search. Parts may hold what Postgres takes for no text (a NUL,
-- half of a surrogate pair): the words of such a message are not found.
create function message_words(parts json) returns tsvector language plpgsql immutable strict as $$
begin
  return to_tsvector('pg_catalog.simple', left(coalesce((
    select string_agg(part ->> 'text', ' ') from json_array_elements(parts) part
    where part ->> 'type' = 'text'), ''), 50000));
exception when others then
  return ''::tsvector;
end
$$;
create index messages_words on messages using gin (message_words(parts)) where role in ('user', 'assistant');
select lock_by_tenant('messages');

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
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on events (tenant_id, message_id) where message_id is not null;
select lock_by_tenant('events');

-- Images and text files of a conversation, at most 10 MiB each.
create table attachments (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  name text not null,
  -- judged by the content
  media_type text not null,
  size bigint not null,
  data bytea not null,
  created_at timestamptz not null default now(),
  -- whether a message names it; one that no message names is deleted after an hour
  named boolean not null default true,
  primary key (tenant_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
-- Images and texts that are worth it are compressed already, or small.
alter table attachments alter column data set storage external;
create index on attachments (tenant_id, conversation_id);
create index attachments_unnamed on attachments (tenant_id, id) where not named;
select lock_by_tenant('attachments');

-- What a user thinks of an answer.
create table feedback (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  message_id uuid not null,
  rating text not null check (rating in ('up', 'down')),
  comment text,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, message_id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, message_id) references messages (tenant_id, id) on delete cascade
);
create index on feedback (tenant_id, conversation_id);
select lock_by_tenant('feedback');

-- What tool results of a conversation linked to. Nothing else of a server can be read.
create table resource_links (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  server text not null,
  -- whose result it was: whoever may not use the tool any more may not read what it linked to
  tool text not null,
  uri text not null,
  name text,
  mime_type text,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, server, uri),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
select lock_by_tenant('resource_links');

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
  -- an answer may be empty: a code was judged before it is handed on, so there is nothing to seal
  entered_key_version int generated always as (
    case when entered is null or length(entered) < 7 then null
    else (get_byte(entered, 3) << 24) | (get_byte(entered, 4) << 16)
      | (get_byte(entered, 5) << 8) | get_byte(entered, 6) end
  ) stored,
  answer_key_version int generated always as (
    case when answer is null or length(answer) < 7 then null
    else (get_byte(answer, 3) << 24) | (get_byte(answer, 4) << 16)
      | (get_byte(answer, 5) << 8) | get_byte(answer, 6) end
  ) stored,
  primary key (tenant_id, id),
  -- a second flow replaces the first
  unique (tenant_id, conversation_id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  check ((step = 'pick') = (server is null))
);
-- What was entered and never sent is forgotten.
create index on flows (expires_at);
create index on flows (tenant_id, user_id);
-- A unique index must hold the column that a table is sharded by. A link is 256 random bits, so no two tenants have
-- the same one; whoever opens a link has not said of which tenant it is, which is what the second index is for.
create unique index flows_link on flows (tenant_id, link_hash) where link_hash is not null;
create index flows_by_link on flows (link_hash) where link_hash is not null;
select lock_by_tenant('flows');
-- Whoever opens a link has not said who they are.
create policy system on flows for select to chatelaine_system using (true);
grant select (tenant_id, id, link_hash, expires_at) on flows to chatelaine_system;

-- Users who were sent to sign in and have not come back yet.
create table oauth_sign_ins (
  tenant_id uuid not null,
  id uuid not null,
  -- SHA-256 of the state that comes back with the browser
  state_hash bytea not null,
  -- SHA-256 of what the browser that asked for the sign-in was given
  browser_hash bytea,
  user_id text not null,
  locale text,
  agent text not null,
  server text not null,
  -- where it began, and the flow in which the code of the page is named
  conversation_id uuid,
  flow_id uuid,
  sealed bytea not null,
  used_at timestamptz,
  expires_at timestamptz not null,
  -- the client that was registered for it; null: one that is known otherwise
  client_id uuid,
  begun_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, state_hash),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on oauth_sign_ins (state_hash);
create index on oauth_sign_ins (expires_at);
create index on oauth_sign_ins (tenant_id, conversation_id);
create index on oauth_sign_ins (tenant_id, client_id) where client_id is not null;
select lock_by_tenant('oauth_sign_ins');
-- Whoever comes back has not said who they are.
create policy system on oauth_sign_ins for select to chatelaine_system using (true);
grant select (tenant_id, id, state_hash, expires_at) on oauth_sign_ins to chatelaine_system;

-- A call that its server answered with a question to the user: what is asked, and how far the answer is.
create table elicitations (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  user_id text not null,
  agent text not null,
  server text not null,
  tool text not null,
  -- the run and the call that were answered with it
  run_id uuid not null,
  call_id text not null,
  -- whose connection it was
  credential text not null,
  -- whether a model waits for the outcome, or the user who typed /call
  for_model boolean not null,
  -- how often the server has asked in the course of this call, from 1
  round int not null,
  -- open: the user is asked; answered: `answer_run` is to make the call; sent: it may have been sent
  state text not null default 'open' check (state in ('open', 'answered', 'sent')),
  -- which question is asked now
  step int not null default 0,
  -- the arguments, the questions and the server's own state, sealed
  sealed bytea not null,
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  -- what was answered so far, sealed
  entered bytea,
  entered_key_version int generated always as (
    case when entered is null then null
    else (get_byte(entered, 3) << 24) | (get_byte(entered, 4) << 16)
      | (get_byte(entered, 5) << 8) | get_byte(entered, 6) end
  ) stored,
  -- why the last answer could not be used
  fault text,
  answer_run uuid,
  expires_at timestamptz not null,
  -- a server of the older revisions asks while its call is open, and waits: the worker that waits with it prolongs
  -- the row (`expires_at` is a lease then, and `answer_run` stays empty)
  live boolean not null default false,
  primary key (tenant_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version),
  foreign key (tenant_id, entered_key_version) references tenant_keys (tenant_id, version)
);
-- One at a time: what is typed answers it.
create unique index elicitations_open on elicitations (tenant_id, conversation_id) where state = 'open';
create index on elicitations (tenant_id, answer_run) where answer_run is not null;
create index on elicitations (expires_at);
select lock_by_tenant('elicitations');
-- What nobody answered is found by the clock.
create policy system on elicitations for select to chatelaine_system using (true);
grant select (tenant_id, id, expires_at) on elicitations to chatelaine_system;

-- Runs, and requests that begin them ------------------------------------------------------------------------------

-- A run is one piece of work of an agent in a conversation. Runs that programs and other runs start form a tree:
-- `root_run` is the one that began it, which also holds what all of them were given and no model sees (`scope`,
-- sealed), for as long as one of them is open.
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
  root_run uuid,
  parent_run uuid,
  depth int not null default 0,
  -- what the model is told besides the prompt
  params json,
  -- of a root: what the servers of the whole tree may be told, and no model
  scope bytea,
  has_scope boolean not null generated always as (scope is not null) stored,
  -- the session that is told when it has ended, and when it was
  callback_session uuid,
  called_back_at timestamptz,
  awaits_callback boolean not null generated always as (
    callback_session is not null and called_back_at is null) stored,
  -- SHA-256 of what opens the orchestrator to this run: one for each process that works on it
  token_hashes bytea[] not null default '{}',
  scope_key_version int generated always as (
    case when scope is null then null
    else (get_byte(scope, 3) << 24) | (get_byte(scope, 4) << 16)
      | (get_byte(scope, 5) << 8) | get_byte(scope, 6) end
  ) stored,
  -- until when nobody asks the model that did not answer
  retry_at timestamptz,
  -- the part of `input_tokens` that the provider had kept from an earlier request
  cached_input_tokens bigint not null default 0,
  -- the form that the answer must have: JSON, perhaps with a schema; null: free text
  answer_format json,
  -- a client, or a proxy before it, gave up on the request while its run had called nothing, and an equal request
  -- is answered in place of this one: the run calls no tool any more
  superseded boolean not null default false,
  -- the id of the HTTP request that made the run, which whichever replica works on it says in its log
  request_id text,
  primary key (tenant_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  check ((status = 'running') = (lease_owner is not null)),
  check (scope is null or root_run = id)
);
-- one turn works on a conversation at a time, and one waits; commands need no turn
create unique index runs_one_turn_running on runs (tenant_id, conversation_id)
  where status = 'running' and kind = 'turn';
create unique index runs_one_turn_queued on runs (tenant_id, conversation_id)
  where status = 'queued' and kind = 'turn';
create index runs_open on runs (created_at) where status in ('queued', 'running');
create index on runs (tenant_id, conversation_id);
-- What a user has open, to end it.
create index on runs (tenant_id, user_id) where status in ('queued', 'running');
create index on runs (tenant_id, root_run) where root_run is not null;
create index on runs (tenant_id, parent_run) where parent_run is not null;
-- work, across tenants
create index runs_unsettled on runs (created_at) where has_scope or awaits_callback;
create index on runs (tenant_id, scope_key_version) where scope is not null;
-- What a user lists of their runs.
create index on runs (tenant_id, user_id, id desc);
select lock_by_tenant('runs');
create policy system on runs for select to chatelaine_system using (true);
grant select (tenant_id, id, conversation_id, user_id, kind, status, lease_until, created_at, root_run,
  has_scope, awaits_callback)
  on runs to chatelaine_system;

-- Requests that a client may send again, and what was begun for them. A row goes with its conversation, and the
-- purge deletes it after a day.
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
  -- the turn failed after it had called tools, or was stopped then: an equal request is not begun again for a while
  failed_at timestamptz,
  -- its client left, or somebody stopped it
  stopped boolean not null default false,
  -- the replica that holds the connection of the client: one that is killed cannot say that it was lost
  served_by uuid,
  -- until when it says so; null once the client has its answer
  served_until timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, user_id, key),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on request_keys (tenant_id, conversation_id);
select lock_by_tenant('request_keys');

-- Answers of requests that made something, for a client that sends such a request again within a day.
create table request_answers (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- who asked; for somebody without a credential the address
  user_id text not null,
  -- what the client calls the request
  key text not null,
  -- SHA-256 of its method, path and body
  digest bytea not null,
  -- status, headers and body; null until the thing is made
  sealed bytea,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, user_id, key)
);
create index on request_answers (tenant_id, created_at);
select lock_by_tenant('request_answers');

-- The same for the operator, whose answers hold no secret.
create table operator_request_answers (
  key text primary key,
  id uuid not null,
  digest bytea not null,
  answer bytea,
  created_at timestamptz not null default now()
);
alter table operator_request_answers enable row level security;
alter table operator_request_answers force row level security;
create policy system on operator_request_answers to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on operator_request_answers to chatelaine_system;

-- Answers that an OpenAI client can read again and continue by their id, which is the id of their run.
create table responses (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  -- the answer begins after this event of the conversation
  first_event bigint not null,
  -- what the request said that is repeated with the answer, or changes how it is read
  settings json not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  foreign key (tenant_id, id) references runs (tenant_id, id) on delete cascade,
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on responses (tenant_id, conversation_id);
select lock_by_tenant('responses');

-- The chats of clients that name them: which conversation a chat is, and the run that answers it. A row goes with
-- its conversation.
create table client_chats (
  tenant_id uuid not null,
  id uuid not null,
  user_id text not null,
  -- the protocol and the client's own id of the chat
  chat text not null,
  conversation_id uuid not null,
  run_id uuid not null,
  -- the answer begins after this event of the conversation
  first_event bigint not null,
  -- how often the client came back to the answer of this run
  repeats int not null default 0,
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, user_id, chat),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on client_chats (tenant_id, conversation_id);
select lock_by_tenant('client_chats');

-- Tickets for event streams: each opens one stream, once, within a minute.
create table stream_tickets (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- SHA-256 of the ticket
  hash bytea not null check (length(hash) = 32),
  -- who asked, as verified then
  principal json not null,
  expires_at timestamptz not null,
  primary key (tenant_id, id),
  unique (tenant_id, hash)
);
select lock_by_tenant('stream_tickets');

-- Approvals and limits --------------------------------------------------------------------------------------------

-- Calls that wait for somebody's consent (crates/domain/src/approval.rs). A request outlives the conversation that
-- it was made in, so it names conversation and run without a foreign key: when they are gone there is nobody to
-- tell.
create table approvals (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  code text not null,
  state text not null check (state in ('pending', 'approved', 'executing', 'succeeded', 'failed', 'outcome_unknown',
                                       'rejected', 'expired', 'cancelled', 'revoked', 'lapsed')),
  agent text not null,
  server text not null,
  tool text not null,
  -- the server's own words of the tool, and SHA-256 over all that it said of it
  about json not null,
  fingerprint bytea not null check (length(fingerprint) = 32),
  -- the arguments as they run: canonical JSON, sealed, and its SHA-256
  args_sha256 bytea not null check (length(args_sha256) = 32),
  sealed bytea not null,
  -- read out of the envelope, so that the two cannot disagree. These records are not sealed anew by `rewrap`:
  -- versions of a tenant's key are never deleted, only wrapped anew
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  -- which credential the call would go out with
  credential text not null,
  requester text not null,
  -- who asked, as verified then
  principal json not null,
  conversation_id uuid,
  run_id uuid,
  call_id text not null,
  follow_up boolean not null,
  -- the policy as it was
  approvers text[] not null,
  min_approvals int not null check (min_approvals > 0),
  self_approval boolean not null,
  reason text,
  decided_by text,
  decided_at timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  changed_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz,
  evidence text,
  recorded_happened boolean,
  recorded_note text,
  recorded_by text,
  recorded_at timestamptz,
  -- who is about to execute it or does, until when; a write with an older fence is refused
  lease_owner uuid,
  lease_until timestamptz,
  fence bigint not null default 0,
  -- approved, it must have been begun by then
  lapses_at timestamptz,
  -- whoever stops a run takes back what it and the runs below it have asked consent for: from that moment on it
  -- cannot be approved, and who sees the mark ends the request
  withdrawn_by text,
  withdrawn boolean not null generated always as (withdrawn_by is not null) stored,
  -- why the request was taken back; null: with its run
  withdrawn_cause text check (withdrawn_cause in ('signed_out', 'key_revoked', 'blocked')),
  -- what to call whoever brought the request into its state
  by_name text,
  -- what to call the requester, with their id where somebody else is read as the same
  requester_name text,
  -- on which way the call came; conditions of rules may ask it
  origin text not null default 'chat',
  primary key (tenant_id, id),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version),
  check (num_nonnulls(recorded_happened, recorded_by, recorded_at) in (0, 3)),
  check ((state = 'approved' or state = 'executing') <= (lapses_at is not null)),
  check ((state = 'executing') <= (lease_until is not null))
);
create unique index approvals_code on approvals (tenant_id, code)
  where state in ('pending', 'approved', 'executing');
-- The same call of the same person waits once in a conversation; in another conversation it is a request of its
-- own, so that each of them is told the outcome.
create unique index approvals_same_in_conversation
  on approvals (tenant_id, requester, agent, server, tool, args_sha256,
                coalesce(conversation_id, '00000000-0000-0000-0000-000000000000'))
  where state in ('pending', 'approved', 'executing');
create index approvals_pending on approvals (tenant_id, agent, expires_at) where state = 'pending';
create index on approvals (tenant_id, requester, id desc);
create index on approvals (tenant_id, agent, id desc);
create index on approvals (tenant_id, changed_at);
create index on approvals (tenant_id, code);
-- work, across tenants
create index approvals_overdue on approvals (expires_at) where state = 'pending';
create index approvals_to_run on approvals (lease_until) where state in ('approved', 'executing');
create index on approvals (tenant_id, tenant_key_version);
create index approvals_withdrawn on approvals (id) where withdrawn and state = 'pending';
create index on approvals (tenant_id, run_id) where state in ('pending', 'approved');
-- The arguments of a call are erased to the seven bytes that say what they were sealed with.
create index approvals_with_arguments on approvals (tenant_id, id) where length(sealed) > 7;
-- A conversation with a waiting request is kept.
create index approvals_of_conversation on approvals (tenant_id, conversation_id)
  where state in ('pending', 'approved', 'executing');
select lock_by_tenant('approvals');
-- To find what is overdue or to be executed, and nothing of what it is.
create policy system on approvals for select to chatelaine_system using (true);
grant select (tenant_id, id, state, expires_at, changed_at, lease_until, withdrawn)
  on approvals to chatelaine_system;

-- Who said what; once each.
create table approval_votes (
  tenant_id uuid not null,
  id uuid not null,
  approval_id uuid not null,
  approver text not null,
  choice text not null check (choice in ('approve', 'reject')),
  reason text,
  at timestamptz not null default clock_timestamp(),
  -- in which session the vote was given: its issuer and its times, and the key that spoke for the voter
  session json,
  key_id uuid,
  -- when the voter was told how the call ended
  outcome_told_at timestamptz,
  primary key (tenant_id, id),
  unique (tenant_id, approval_id, approver),
  foreign key (tenant_id, approval_id) references approvals (tenant_id, id) on delete cascade
);
create index approval_votes_untold on approval_votes (tenant_id, approver)
  where outcome_told_at is null and choice = 'approve';
select lock_by_tenant('approval_votes');

-- Requests for consent of clients that call tools themselves, at `/mcp/{agent}`. They have no conversation: the
-- client makes the same call again and is given what came of it.
create table approval_results (
  tenant_id uuid not null,
  -- of the approval
  id uuid not null,
  -- what the server answered, or the program in its place; absent until then, and when nothing was sent
  result text,
  -- when the client was first told how the request ended
  collected_at timestamptz,
  primary key (tenant_id, id),
  foreign key (tenant_id, id) references approvals (tenant_id, id) on delete cascade
);
select lock_by_tenant('approval_results');

-- Which requests a person has been told of at the head of an answer: each once, wherever they chat.
create table approval_notices (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  user_id text not null,
  approval_id uuid not null,
  primary key (tenant_id, id),
  unique (tenant_id, user_id, approval_id),
  foreign key (tenant_id, approval_id) references approvals (tenant_id, id) on delete cascade
);
create index on approval_notices (tenant_id, approval_id);
select lock_by_tenant('approval_notices');

-- Which requests a person was shown in a conversation, with which arguments: a command there decides about nothing
-- else.
create table shown_requests (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  conversation_id uuid not null,
  approval_id uuid not null,
  args_sha256 bytea not null check (length(args_sha256) = 32),
  -- whose answer showed it; no command that was sent before its end is about it
  run_id uuid not null,
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, approval_id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, approval_id) references approvals (tenant_id, id) on delete cascade
);
create index on shown_requests (tenant_id, approval_id);
select lock_by_tenant('shown_requests');

-- The sums of limits over time. Whoever adds to one locks its row first.
create table limit_sums (
  tenant_id uuid not null references tenants (id) on delete cascade,
  -- SHA-256 of the limit and of whose calls it adds up
  id bytea not null check (length(id) = 32),
  looked_at timestamptz not null,
  primary key (tenant_id, id)
);
select lock_by_tenant('limit_sums');

-- What limits have let through: each call once for each sum that it is part of.
create table limit_uses (
  tenant_id uuid not null,
  -- of the call
  id uuid not null,
  sum_id bytea not null,
  at timestamptz not null,
  amount numeric not null check (amount >= 0),
  primary key (tenant_id, id, sum_id),
  foreign key (tenant_id, sum_id) references limit_sums (tenant_id, id) on delete cascade
);
create index limit_uses_by_sum on limit_uses (tenant_id, sum_id, at);
select lock_by_tenant('limit_uses');

-- What happened: the audit trail and webhooks ---------------------------------------------------------------------

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
-- The newest first is the primary key read backwards: ids are UUIDv7. These are for whoever asks for less.
create index audit_by_actor on audit (tenant_id, actor, id);
create index audit_by_tool on audit (tenant_id, server, tool, id) where server is not null;
create index audit_by_run on audit (tenant_id, run_id) where run_id is not null;
create index audit_by_arguments on audit (tenant_id, args_sha256) where args_sha256 is not null;
-- Nearly every row is a call; what is not would have to be looked for among them.
create index audit_by_action on audit (tenant_id, action, id) where action <> 'tool.call';
alter table audit enable row level security;
alter table audit force row level security;
create policy tenant on audit to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on audit to chatelaine_tenant;
-- Old lines are deleted by a role of its own, which sees of one tenant the lines that are older than
-- `tenants.audit_days`, and their ids and times only. Whatever a statement of this role says, it deletes no other
-- line.
create policy retention on audit to chatelaine_retention
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid
         and at < now() - make_interval(days => (select t.audit_days from tenants t where t.id = tenant_id)))
  with check (false);
grant delete on audit to chatelaine_retention;
grant select (tenant_id, id, at) on audit to chatelaine_retention;

-- How a call ended whose line of the audit trail was written before it was sent. Like the trail only ever added to;
-- a line without an outcome here says itself how it ended, or that nobody knows.
create table audit_outcomes (
  tenant_id uuid not null,
  -- of the line
  id uuid not null,
  outcome text not null,
  primary key (tenant_id, id),
  foreign key (tenant_id, id) references audit (tenant_id, id) on delete cascade
);
alter table audit_outcomes enable row level security;
alter table audit_outcomes force row level security;
create policy tenant on audit_outcomes to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on audit_outcomes to chatelaine_tenant;

-- What concerns no single tenant, or outlives one: the keys of the ring, tenants that came and went. For the
-- operator's eyes, and like a tenant's trail only ever added to.
create table operator_audit (
  id uuid primary key,
  at timestamptz not null default now(),
  actor text not null,
  action text not null,
  detail text
);
alter table operator_audit enable row level security;
alter table operator_audit force row level security;
create policy system on operator_audit to chatelaine_system using (true) with check (true);
grant select, insert on operator_audit to chatelaine_system;

-- Where a tenant wants to be told what happens.
create table webhooks (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- how many a tenant may have is how many slots there are
  slot smallint not null check (slot between 1 and 20),
  url text not null,
  -- names of events; one that ends in * stands for all that begin so
  events text[] not null check (cardinality(events) between 1 and 20),
  -- what the messages are signed with
  sealed bytea not null,
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  created_at timestamptz not null default now(),
  disabled_at timestamptz,
  last_delivered_at timestamptz,
  last_failed_at timestamptz,
  last_error text,
  primary key (tenant_id, id),
  unique (tenant_id, slot),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version)
);
select lock_by_tenant('webhooks');

-- The outbox: written with what happened, in the same transaction, and sent afterwards.
create table webhook_deliveries (
  tenant_id uuid not null,
  id uuid not null,
  webhook_id uuid not null,
  event text not null,
  payload json not null,
  attempts int not null default 0,
  created_at timestamptz not null default now(),
  -- not before; moved ahead by whoever sends it, which is the lease. Null: nothing is to be sent any more
  next_attempt_at timestamptz,
  delivered_at timestamptz,
  last_status int,
  last_error text,
  primary key (tenant_id, id),
  foreign key (tenant_id, webhook_id) references webhooks (tenant_id, id) on delete cascade
);
create index webhook_deliveries_due on webhook_deliveries (next_attempt_at) where next_attempt_at is not null;
create index webhook_deliveries_of on webhook_deliveries (tenant_id, webhook_id, id);
create index webhook_deliveries_old on webhook_deliveries (created_at);
select lock_by_tenant('webhook_deliveries');
-- To find what is to be sent, and what is old: no content.
create policy system on webhook_deliveries for select to chatelaine_system using (true);
grant select (tenant_id, id, webhook_id, created_at, next_attempt_at) on webhook_deliveries to chatelaine_system;

-- The replicas ----------------------------------------------------------------------------------------------------

-- Work that one replica does at a time.
create table jobs (
  name text primary key,
  lease_owner uuid,
  lease_until timestamptz,
  -- when it was done last
  done_at timestamptz
);
alter table jobs enable row level security;
alter table jobs force row level security;
create policy system on jobs to chatelaine_system using (true) with check (true);
grant select, insert, update on jobs to chatelaine_system;

-- Which replicas are at work, and how each of them is. They are no tenant's. `key_holders` has only those that have
-- keys, and decides with them; this table is only shown.
create table replicas (
  id uuid primary key,
  version text not null,
  started_at timestamptz not null,
  seen_at timestamptz not null default now(),
  -- what the replica answers at /readyz
  readiness json not null
);
alter table replicas enable row level security;
alter table replicas force row level security;
create policy system on replicas to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on replicas to chatelaine_system;
