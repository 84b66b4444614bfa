#!/usr/bin/env bash
# usage: PGHOST=… PGPORT=… PGUSER=postgres PGDATABASE=chatelaine docs/scaling/citus.sh
#
# Distributes the tables of a migrated Chatelaine database by tenant, on a Postgres with Citus. Run it as a superuser,
# with no replica running. Tables whose unique keys all hold tenant_id are distributed; the others become reference
# tables. SHARDS says how many shards each table has (32).
set -euo pipefail

sql() { psql --no-psqlrc --quiet --no-align --tuples-only -v ON_ERROR_STOP=1 "$@"; }
# Nothing is changed that the script cannot go on from.
refuse() { echo "citus.sh: $1; nothing was changed" >&2; exit 1; }
policies=$(sql -c "select string_agg(format('%s on %s', polname, polrelid::regclass), ', ') from pg_policy
  where coalesce(pg_get_expr(polqual, polrelid), '') || coalesce(pg_get_expr(polwithcheck, polrelid), '') ~* '\mselect\M'")
[ -z "$policies" ] || refuse "Citus does not distribute tables whose policies have subqueries: $policies"
[ "$(sql -c "select count(*) from pg_available_extensions where name = 'citus'")" = 1 ] || refuse "Citus is not installed"
# The foreign keys are dropped first and made again last; a failure in between leaves their definitions in this file.
keys=$(mktemp)
trap '[ $? = 0 ] && rm -f "$keys" || echo "citus.sh: the foreign keys that were dropped are in $keys" >&2' EXIT
tables="select c.oid, c.relname from pg_class c
  where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace and c.relname <> '_sqlx_migrations'"
shareable="not exists (
  select from pg_index i where i.indrelid = t.oid and i.indisunique and not exists (
    select from pg_attribute a where a.attrelid = t.oid and a.attname = 'tenant_id' and a.attnum = any(i.indkey)))"

# Citus adds a foreign key only between tables that are distributed already.
sql -c "select format('alter table %s add constraint %I %s;', conrelid::regclass, conname, pg_get_constraintdef(oid))
        from pg_constraint where contype = 'f' and connamespace = 'public'::regnamespace" >"$keys"
sql -c "select format('alter table %s drop constraint %I;', conrelid::regclass, conname)
        from pg_constraint where contype = 'f' and connamespace = 'public'::regnamespace" | sql
sql -c "create extension if not exists citus"
# A single node keeps the shards itself. With workers, add them with citus_add_node before.
if [ "$(sql -c "select count(*) from pg_dist_node where groupid > 0")" = 0 ]; then
  sql -c "select citus_set_coordinator_host('127.0.0.1', current_setting('port')::int)" \
    -c "select citus_set_node_property('127.0.0.1', current_setting('port')::int, 'shouldhaveshards', true)" >/dev/null
fi

export PGOPTIONS="-c client_min_messages=error -c citus.shard_count=${SHARDS:-32} -c citus.multi_shard_modify_mode=sequential"
sql -c "select format('select create_reference_table(%L);', relname) from ($tables) t where not $shareable order by 1" |
  sql >/dev/null
first=$(sql -c "select min(relname) from ($tables) t where $shareable")
sql -c "select format('select create_distributed_table(%L, ''tenant_id'', colocate_with => %L);', relname,
               case when relname = '$first' then 'none' else '$first' end)
        from ($tables) t where $shareable order by relname" | sql >/dev/null
sql -f "$keys"
# Citus copies the grants of a table to its shards, but not those of single columns.
sql -c "select format('select run_command_on_placements(%L, %L);', c.relname,
               format('grant %s on %%s to %I', string_agg(g.privilege_type || '(' || quote_ident(a.attname) || ')', ', '),
                      g.grantee::regrole))
        from ($tables) t join pg_class c using (oid) join pg_attribute a on a.attrelid = c.oid, aclexplode(a.attacl) g
        group by c.relname, g.grantee" | sql | { grep -v ',t,' || true; }
# A node opens connections to itself and to others as the role of the transaction, and each must know the tenant, too. The
# roles have no password: let pg_hba.conf admit them from the nodes only.
sql -c "alter role chatelaine_tenant login" -c "alter role chatelaine_system login"
sql -c "alter database \"$(sql -c 'select current_database()')\" set citus.propagate_set_commands = 'local'"
sql -c "select count(*) || ' ' || citus_table_type || ' tables' from citus_tables group by citus_table_type order by 1"
