-- What a user entered last for a server that does not judge a credential before its first call. What was there before
-- stays until that call succeeds.
alter table credentials
  add column candidate bytea,
  -- null: there is none
  add column candidate_generation bigint,
  add column candidate_key_version int generated always as (
    (get_byte(candidate, 3) << 24) | (get_byte(candidate, 4) << 16) | (get_byte(candidate, 5) << 8) | get_byte(candidate, 6)
  ) stored,
  -- the highest generation that was ever given, to a candidate that was refused, too
  add column last_generation bigint not null default 0,
  -- a candidate was refused, and its user was not told yet
  add column candidate_refused boolean not null default false;
grant select (verified_at, candidate_generation, candidate_key_version, last_generation, candidate_refused)
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
