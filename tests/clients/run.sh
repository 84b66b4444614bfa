#!/usr/bin/env bash
# usage: tests/clients/run.sh [URL TOKEN]
#
# Generates clients from /openapi.json for Python, TypeScript, Go and Java, with the generators that people use, compiles
# them, and lets each open a conversation with `bank`, send a file and a message, and read both. Without arguments it
# starts the demo. LANGUAGES says which (python typescript go java). Generators and compilers come from PyPI and npm; Java
# and its annotations from the distribution.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

say() { printf 'clients: %s\n' "$*" >&2; }
root=$PWD here=$PWD/tests/clients kept=${CARGO_TARGET_DIR:-$PWD/target}/clients
languages=${LANGUAGES:-python typescript go java}
work=$kept/work
rm -rf "$work"
mkdir -p "$work"

say "installing the generators"
[ -x "$kept/venv/bin/pip" ] || python3 -m venv "$kept/venv"
"$kept/venv/bin/pip" install --quiet --requirement "$here/requirements.txt"
python=$kept/venv/bin
cp "$here/package.json" "$kept/"
[[ " $languages " != *" typescript "* ]] || npm install --prefix "$kept" --silent --no-audit --no-fund

if [ $# = 0 ]; then
  program=${CARGO_TARGET_DIR:-$root/target}/debug/chatelaine
  CHATELAINE_LISTEN=127.0.0.1:0 CHATELAINE_DATA=$work/data "$program" demo >"$work/log" 2>&1 &
  demo=$!
  trap 'kill "$demo"; wait' EXIT
  until [ -s "$work/data/demo.json" ]; do
    kill -0 "$demo" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.2
  done
  of() { python3 -c 'import json, sys; demo = json.load(open(sys.argv[1])); print(demo.get(sys.argv[2]) or demo["tokens"][sys.argv[2]])' "$work/data/demo.json" "$1"; }
  set -- "$(of url)" "$(of finance)"
fi
python3 -c 'import sys, urllib.request as web; sys.stdout.buffer.write(web.urlopen(sys.argv[1] + "/openapi.json").read())' "${1%/}" >"$work/openapi.json"

generator() {
  local language=$1 properties=$2
  shift 2
  "$python/openapi-generator-cli" generate -i "$work/openapi.json" -g "$language" -o "$work/$language" "$@" \
    --additional-properties="$properties" >"$work/$language.log" 2>&1 || { cat "$work/$language.log" >&2; return 1; }
}

try_python() {
  # What it leaves out it says, and says it with success.
  "$python/openapi-python-client" generate --path "$work/openapi.json" --output-path "$work/python" --meta none \
    --config <(echo '{"project_name_override": "chatelaine", "package_name_override": "chatelaine_client", "post_hooks": []}') \
    >"$work/python.log" 2>&1 || { cat "$work/python.log" >&2; return 1; }
  if grep -qiE 'unable|cannot|removal|skipping' "$work/python.log"; then
    cat "$work/python.log" >&2
    return 1
  fi
  mkdir -p "$work/of-python"
  mv "$work/python" "$work/of-python/chatelaine_client"
  PYTHONPATH=$work/of-python "$python/python" "$here/client.py" "$@"
}

try_typescript() {
  local folder=$kept/typescript
  rm -rf "$folder"
  mkdir -p "$folder"
  cp "$here/client.ts" "$here/tsconfig.json" "$here/openapi-ts.config.mjs" "$folder/"
  echo '{ "type": "module" }' >"$folder/package.json"
  (cd "$folder" \
    && "$kept/node_modules/.bin/openapi-typescript" "$work/openapi.json" --output types.d.ts >"$work/typescript.log" 2>&1 \
    && DOCUMENT=$work/openapi.json "$kept/node_modules/.bin/openapi-ts" >>"$work/typescript.log" 2>&1 \
    || { cat "$work/typescript.log" >&2; exit 1; }
    "$kept/node_modules/.bin/tsc" --project . && node out/client.js "$@")
}

try_go() {
  generator go packageName=chatelaine,withGoMod=false,useOneOfDiscriminatorLookup=true,enumClassPrefix=true \
    --git-host example.org --git-user-id none --git-repo-id chatelaine
  mkdir -p "$work/of-go/main"
  rm -rf "$work/go/test"
  cp "$work"/go/*.go "$work/of-go/"
  cp "$here/client.go" "$work/of-go/main/"
  # Nothing is downloaded: the client needs the standard library alone.
  printf 'module example.org/chatelaine\n\ngo 1.23\n' >"$work/of-go/go.mod"
  (cd "$work/of-go" && GOPROXY=off GOFLAGS=-mod=mod GOCACHE=$kept/go "$python/go" vet ./... \
    && GOPROXY=off GOCACHE=$kept/go "$python/go" run ./main "$@")
}

try_java() {
  generator java openApiNullable=false,useJakartaEe=true,hideGenerationTimestamp=true --library native
  # The generator's own archive has most libraries that its client needs.
  local archives
  archives=$(find "$kept/venv" -name openapi-generator.jar)
  for archive in jakarta-annotation-api httpclient httpmime httpcore commons-logging; do
    archives+=:/usr/share/java/$archive.jar
  done
  (cd "$work/java" && mkdir -p out && find src/main/java -name '*.java' >sources \
    && javac -nowarn -d out -cp "$archives" @sources "$here/Client.java" 2>"$work/javac.log" \
    || { tail -50 "$work/javac.log" >&2; exit 1; }
    java -cp "out:$archives" Client "$@")
}

failed=()
for language in $languages; do
  "try_$language" "${1%/}" "$2" || failed+=("$language")
done
[ ${#failed[@]} = 0 ] || { say "failed: ${failed[*]}"; exit 1; }
