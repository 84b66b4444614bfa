#!/usr/bin/env bash
# usage: cluster.sh start|stop DIR PORT WORKERS
#
# A coordinator at 127.0.0.1:PORT and WORKERS workers at the ports after it, with their data in DIR. With no worker the
# coordinator keeps the shards. Prints the addresses: a superuser's for each node, one a line, the coordinator first.
# Neither connections nor logs can grow without end: a coordinator that opened connections to itself once wrote
# gigabytes of what it had to say about it.
set -euo pipefail
action=$1 folder=$2 port=$3 workers=$4
bin=$(pg_config --bindir)
# Postgres does not run as root.
as() { if [ "$(id -u)" = 0 ]; then (cd / && runuser -u postgres -- "$@"); else "$@"; fi; }
sql() { psql --no-psqlrc -qAt -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$1" -U postgres -d "${@:2}"; }

stop() {
  for data in "$folder"/node-*/data; do
    [ -f "$data/postmaster.pid" ] && as "$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null || true
  done
}
if [ "$action" = stop ]; then stop; exit; fi

mkdir -p "$folder"
chmod 755 "$folder"
for node in $(seq 0 "$workers"); do
  home=$folder/node-$node
  mkdir -p "$home"
  [ "$(id -u)" != 0 ] || chown postgres "$home"
  as "$bin/initdb" -D "$home/data" -A trust -U postgres --no-sync >/dev/null
  as tee -a "$home/data/postgresql.conf" >/dev/null <<CONF
shared_preload_libraries = 'citus, pg_stat_statements'
port = $((port + node))
listen_addresses = '127.0.0.1'
unix_socket_directories = '$home'
ssl = off
fsync = off
max_connections = ${CONNECTIONS:-200}
log_min_messages = panic
log_min_error_statement = panic
max_prepared_transactions = 200
max_worker_processes = 40
wal_level = logical
citus.node_conninfo = 'sslmode=disable'
citus.max_shared_pool_size = ${SHARED_POOL:-150}
citus.max_cached_conns_per_worker = 1
citus.max_adaptive_executor_pool_size = 1
CONF
  as bash -c "'$bin/postgres' -D '$home/data' 2>&1 </dev/null | head -c 10000000 >'$home/log'" >/dev/null 2>&1 &
done
for node in $(seq 0 "$workers"); do
  for _ in $(seq 100); do sql $((port + node)) postgres -c 'select 1' >/dev/null 2>&1 && break; sleep 0.2; done
  echo "postgres://postgres@127.0.0.1:$((port + node))/postgres?sslmode=disable"
done
