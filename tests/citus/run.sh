#!/usr/bin/env bash
# usage: CITUS_SOURCE=DIR tests/citus/run.sh [FILTER…]
#
# Tries the service on Citus: on one node, and on a coordinator with two workers. Plans every query, runs the tests with
# these filters (all, but for those of skipped.txt), counts the statements of a turn, and moves a tenant under load.
# CITUS_SOURCE is a checkout or a bare repository of https://github.com/citusdata/citus; it is built once, for the Postgres
# of pg_config. No registry has it, so CI does not do this. NODES="0 2" says how many workers; CITUS_SKIP_TESTS=1 leaves
# the tests out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$target/citus
mkdir -p "$work"

if [ ! -e "$(pg_config --pkglibdir)/citus.so" ]; then
  : "${CITUS_SOURCE:?name a checkout of Citus}"
  rm -rf "$work/source"
  mkdir -p "$work/source"
  if [ -e "$CITUS_SOURCE/configure" ]; then cp -r "$CITUS_SOURCE/." "$work/source"
  else git --git-dir="$CITUS_SOURCE" archive "refs/heads/${CITUS_BRANCH:-release-13.0}" | tar x -C "$work/source"; fi
  (cd "$work/source" && ./configure --without-libcurl && make -j2 -s && make install -s) >"$work/build.log" 2>&1
fi
cargo build --bin chatelaine
cargo test --no-run --test it
mapfile -t skipped < <(grep -v '^#' tests/citus/skipped.txt | grep .)
all=$(cargo test --quiet --test it -- --list)
for name in "${skipped[@]}"; do
  grep -qF -- "$name" <<<"$all" || { echo "skipped.txt: no test is called $name" >&2; exit 2; }
done

failed=0 port=${PORT:-18700}
for workers in ${NODES:-0 2}; do
  # Postgres must be able to enter the folder, whoever owns the clone.
  folder=$(mktemp -d /tmp/chatelaine-citus.XXXXXX)
  trap 'tests/citus/cluster.sh stop "$folder" "$port" "$workers"; rm -rf "$folder"' EXIT
  mapfile -t nodes < <(tests/citus/cluster.sh start "$folder" "$port" "$workers")
  echo "== ${workers/#0/no} workers"
  tests/citus/service.py "$target/debug/chatelaine" "${nodes[@]}" || failed=1
  if [ -z "${CITUS_SKIP_TESTS:-}" ]; then
    CHATELAINE_TEST_CITUS=$(IFS=,; echo "${nodes[*]}") cargo test --no-fail-fast --test it -- "${skipped[@]/#/--skip=}" "$@" >"$work/tests-$workers.log" 2>&1 || failed=1
    grep -E '^test result|^test .* FAILED$' "$work/tests-$workers.log" | sort | uniq || true
  fi
  tests/citus/cluster.sh stop "$folder" "$port" "$workers"
  rm -rf "$folder"
done
trap - EXIT
exit "$failed"
