#!/usr/bin/env bash
# usage: tests/sdks/run.sh [FILTER ...]
#
# Runs the tests whose names have one of the filters, keeps every request that they send to a model, and reads the
# requests with the types of the SDKs of OpenAI, Anthropic and Google, which it installs once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$PWD/.chatelaine/sdks
if ! cmp -s tests/sdks/requirements.txt "$folder/requirements.txt"; then
  rm -rf "$folder"
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-input -r tests/sdks/requirements.txt
  cp tests/sdks/requirements.txt "$folder"
fi
requests=$(mktemp -d /tmp/chatelaine-sdks.XXXXXX)
trap 'rm -rf "$requests"' EXIT
[ $# -gt 0 ] || set -- llm:: turn:: openai:: streams:: api::attachments resources:: prompts::
CHATELAINE_MODEL_REQUESTS=$requests cargo test --quiet --test it -- "$@"
"$folder/bin/python" tests/sdks/check.py "$requests"
