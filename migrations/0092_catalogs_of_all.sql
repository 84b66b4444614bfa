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
