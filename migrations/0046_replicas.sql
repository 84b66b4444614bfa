-- Which replicas are at work, and how each of them is. They are no tenant's. `key_holders` has only those that have keys,
-- and decides with them; this table is only shown.
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
