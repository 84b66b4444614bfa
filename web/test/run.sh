#!/usr/bin/env bash
# usage: web/test/run.sh
#
# Checks the types against the API that the program describes, then tries the page in Chromium against the demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=${CARGO_TARGET_DIR:-../target}/debug/chatelaine
"$program" openapi >node_modules/.openapi.json
npx openapi-typescript node_modules/.openapi.json --output src/api/schema.ts >/dev/null
npx tsc
npx eslint .
node test/budget.mjs
PROGRAM=$program node --test --test-concurrency=1 test/*.test.mjs
