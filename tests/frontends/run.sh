#!/usr/bin/env bash
# usage: tests/frontends/run.sh
#
# Installs Open WebUI from PyPI, once, and uses it in Chromium as people do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=0.12.4
folder=.chatelaine/open-webui-$version
if [ ! -x "$folder/bin/open-webui" ]; then
  printf 'frontends: installing Open WebUI %s; this takes some minutes and gigabytes\n' "$version" >&2
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet "open-webui==$version"
fi
PROGRAM=${CARGO_TARGET_DIR:-target}/debug/chatelaine OPEN_WEBUI=$PWD/$folder/bin/open-webui \
  node --test --test-reporter=spec tests/frontends/open-webui.test.mjs
