-- What a server said of how its lists may be kept: for how long, and whether users may share them. Null: nothing, or
-- a release that did not ask.
alter table catalogs
  add column ttl_ms bigint check (ttl_ms >= 0),
  add column cache_scope text check (cache_scope in ('public', 'private'));
