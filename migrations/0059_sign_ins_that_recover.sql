-- What tells whether an authorization server still knows a client that was registered there.
alter table oauth_clients
  -- the last sign-in with it, and the last one that came back
  add column begun_at timestamptz,
  add column came_back_at timestamptz,
  -- the authorization server said that it does not know it
  add column unknown_since timestamptz,
  -- when it was last replaced by another one, or was about to be
  add column registered_again_at timestamptz;
alter table oauth_sign_ins
  -- the client that was registered for it; null: one that is known otherwise
  add column client_id uuid,
  add column begun_at timestamptz not null default now();
create index on oauth_sign_ins (tenant_id, client_id) where client_id is not null;

-- Answers to a refresh that may mean its end: how many, and since when.
alter table credentials
  add column doubtful_refusals int not null default 0,
  add column doubtful_since timestamptz;
