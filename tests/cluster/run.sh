#!/usr/bin/env bash
# usage: [PGBOUNCER_SOURCE=pgbouncer-1.25.2.tar.gz] tests/cluster/run.sh PROGRAM
#
# Runs tests/cluster/run.py in namespaces of its own, which take all their processes along when they end. No other
# port or network of the machine is touched. Needs no root, but Linux with user namespaces. Distributions have old
# releases of PgBouncer: PGBOUNCER names the program of another one, and PGBOUNCER_SOURCE the archive or the folder of
# its source, as it is released. Without PgBouncer 1.21 or newer the cluster runs without a pooler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
program=$(realpath "$1")
# HAProxy and `ip` are not among the programs of an ordinary user.
export PATH=$PATH:/usr/sbin:/sbin

# With Debian 12's Patroni 3.0.2 a primary that was cut off and comes back takes the lock from the new one. The servers
# run as another user, for whom a Python in somebody's home is out of reach.
tools=${CARGO_TARGET_DIR:-$PWD/target}/cluster
if [ ! -x "$tools/venv/bin/patroni" ]; then
  PATH=/usr/bin:$PATH python3 -m venv --clear "$tools/venv"
  "$tools/venv/bin/pip" install --quiet 'patroni[etcd3]==4.1.5' 'psycopg[binary]==3.*'
fi
export PATH=$tools/venv/bin:$PATH

can_prepare() { [ -n "$1" ] && [ "$(printf '%s\n' 1.21 "$("$1" --version | sed -n 's/^PgBouncer //p')" | sort -V | head -n 1)" = 1.21 ]; }

pgbouncer=${PGBOUNCER:-$(command -v pgbouncer || true)}
if [ -n "${PGBOUNCER_SOURCE:-}" ]; then
  pgbouncer=$tools/pgbouncer/pgbouncer
  if [ ! -x "$pgbouncer" ]; then
    .ci/install pgbouncer-build
    built=$(dirname "$pgbouncer")
    rm -rf "$built" && mkdir -p "$built"
    if [ -d "$PGBOUNCER_SOURCE" ]; then
      cp -r "$PGBOUNCER_SOURCE/." "$built"
    else
      tar -xf "$PGBOUNCER_SOURCE" -C "$built" --strip-components 1
    fi
    (cd "$built" && { [ -x configure ] || ./autogen.sh; } && ./configure --without-cares && make pgbouncer) >"$built.log" 2>&1 ||
      { tail -n 20 "$built.log" >&2; exit 1; }
  fi
fi
if ! can_prepare "$pgbouncer"; then
  echo "cluster: no PgBouncer 1.21 or newer (PGBOUNCER, PGBOUNCER_SOURCE): going on without a pooler" >&2
  pgbouncer=
fi

own=(--net --pid --fork --kill-child --mount-proc)
[ "$(id -u)" = 0 ] || own=(--map-current-user --keep-caps "${own[@]}")
# The shell buries processes whose parents were killed, as the first process of a machine does.
PGBOUNCER=$pgbouncer exec unshare "${own[@]}" bash -c 'trap "exit 1" INT TERM; "$@" & wait $!' bash \
  python3 tests/cluster/run.py "$program"
