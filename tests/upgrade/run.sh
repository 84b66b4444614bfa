#!/usr/bin/env bash
# usage: PREVIOUS=v0.2.0 tests/upgrade/run.sh
#
# Builds the program of another commit beside this one, and replaces the one by the other under load, and back.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${PREVIOUS:?name the tag or commit of the previous release}"
target=${CARGO_TARGET_DIR:-$PWD/target}
commit=$(git rev-parse --short "$PREVIOUS^{commit}")
old=$target/previous/chatelaine-$commit
if [ ! -x "$old" ]; then
  tree=$target/previous/$commit
  git worktree add --force --detach "$tree" "$commit"
  mkdir -p "$tree/web"
  [ ! -d web/dist ] || cp -r web/dist "$tree/web/"
  (cd "$tree" && CARGO_TARGET_DIR=$target cargo build --bin chatelaine)
  cp "$target/debug/chatelaine" "$old"
  git worktree remove --force "$tree"
fi
cargo build --bin chatelaine
.ci/with-postgres tests/upgrade/run.py "$old" "$target/debug/chatelaine"
