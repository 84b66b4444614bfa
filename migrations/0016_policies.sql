-- What each replica says of its agents' policies, so that replicas with different packs notice each other.
alter table replicas
  -- agent -> its policy, without secrets; null of a release that does not say it
  add column policies json,
  -- a digest of `policies`, which the others compare each second
  add column policies_sha256 bytea,
  -- since when these policies are in force there
  add column policies_since timestamptz,
  -- a digest of the policies of all replicas, as this one goes by them
  add column policies_seen bytea,
  -- a digest of each group of settings that must be the same everywhere
  add column settings json;

-- Policies of which the operator has said that they decide alone, while a replica has them. They are no tenant's.
create table settled_policies (
  agent text primary key,
  sha256 bytea not null,
  settled_at timestamptz not null default now()
);
alter table settled_policies enable row level security;
alter table settled_policies force row level security;
create policy system on settled_policies to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on settled_policies to chatelaine_system;
