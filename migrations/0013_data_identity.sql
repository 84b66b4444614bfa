-- Which data this is, as the replicas that worked with it saw it last (crates/store/src/data_identity.rs). A database
-- that is restored has the row of its backup, and is known by that. It is no tenant's.
create table data_identity (
  is_only boolean primary key default true check (is_only),
  -- the identifier of the cluster; null: the role may not read it
  system_id bigint,
  database_oid bigint not null,
  -- of the table `tenants`
  table_oid bigint not null,
  -- of the log; null: the role may not read it
  timeline int,
  -- of the log, in bytes
  position bigint not null,
  -- when an operator, or the first start, said that this is the data
  confirmed_at timestamptz not null default clock_timestamp(),
  -- how often replicas have written this row since
  beats bigint not null default 0,
  -- a replica has seen a later state of this row than the database has
  is_behind boolean not null default false
);
alter table data_identity enable row level security;
alter table data_identity force row level security;
create policy system on data_identity to chatelaine_system using (true) with check (true);
grant select, insert, update on data_identity to chatelaine_system;
