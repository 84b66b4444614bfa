#!/usr/bin/env bash
# usage: web/build.sh
#
# Builds the web client into web/dist, where `cargo build` finds it. Done before, it ends at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

die() { printf 'web: %s\n' "$*" >&2; exit 1; }

command -v npm >/dev/null || die "npm is missing; run .ci/install node"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' ||
  die "Node $(node --version) is too old for the build of the page; install Node 20.19 or newer"

stamp=node_modules/.stamp
want=$(cat package.json package-lock.json | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  printf 'web: installing the npm packages\n' >&2
  npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >&2
  printf '%s' "$want" >"$stamp"
fi

# Types and tests are no part of what is built.
want=$(find index.html package-lock.json vite.config.ts radix-styles.ts app-manifest.ts icons src -type f ! -name schema.ts | LC_ALL=C sort | xargs cat | cksum)
stamp=node_modules/.built
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || [ ! -e dist/index.html ]; then
  node_modules/.bin/vite build --logLevel warn >&2
  printf '%s' "$want" >"$stamp"
fi
