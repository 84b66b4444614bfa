-- Which releases have brought this database up to date (crates/store/src/migrations/releases.rs). It is no tenant's.
create table releases (
  version text primary key,
  -- the oldest release that may run on the schema of this one
  oldest text not null,
  migrated_at timestamptz not null default now()
);
alter table releases enable row level security;
alter table releases force row level security;
create policy system on releases to chatelaine_system using (true) with check (true);
grant select, insert on releases to chatelaine_system;
