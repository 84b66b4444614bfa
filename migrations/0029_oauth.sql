-- Users who sign in at a server (OAuth 2.1) instead of entering a token.

-- A credential that is a sign-in. What is sealed of it are the tokens and what is needed to refresh them.
alter table credentials
  -- who gave the tokens; null: what is sealed was entered in fields
  add column issuer text,
  -- what the tokens are good for, and what the server asked for since, each with blanks between
  add column scopes text,
  add column wanted_scopes text,
  -- one higher with each refresh; the generation stays, and so do the connections made with it
  add column token_version bigint not null default 0,
  -- when the tokens are refreshed, and when they end; null: nobody knows
  add column refresh_at timestamptz,
  add column tokens_end_at timestamptz,
  -- which replica refreshes them
  add column fence bigint not null default 0,
  add column lease_until timestamptz;

-- The program as a client that an authorization server has registered.
create table oauth_clients (
  tenant_id uuid not null,
  id uuid not null,
  issuer text not null,
  redirect_uri text not null,
  sealed bytea not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, issuer, redirect_uri)
);
select lock_by_tenant('oauth_clients');

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
  primary key (tenant_id, id),
  unique (tenant_id, state_hash),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on oauth_sign_ins (state_hash);
create index on oauth_sign_ins (expires_at);
create index on oauth_sign_ins (tenant_id, conversation_id);
select lock_by_tenant('oauth_sign_ins');

-- Whoever comes back has not said who they are.
create policy system on oauth_sign_ins for select to chatelaine_system using (true);
grant select (tenant_id, id, state_hash, expires_at) on oauth_sign_ins to chatelaine_system;
