#!/usr/bin/env bash
# usage: tests/frontends/repeats/run.sh
#
# Installs clients that send a request again by themselves, from npm and PyPI, once, and lets them repeat what fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
here=tests/frontends/repeats
folder=$PWD/.chatelaine/repeats
npm_packages=(ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/openai-compatible@3.0.92 @langchain/openai@1.6.0
  @langchain/core@1.4.0 openai@7.57.0 @modelcontextprotocol/sdk@1.32.2)
litellm_packages=('litellm[proxy]==1.108.7' openai==3.57.0 tenacity==9.2.1)
# LlamaIndex wants an older openai.
llama_packages=(llama-index-llms-openai-like==0.8.1)

wanted="${npm_packages[*]} ${litellm_packages[*]} ${llama_packages[*]}"
if [ "$(cat "$folder/installed" 2>/dev/null)" != "$wanted" ]; then
  printf 'repeats: installing the clients; this takes some minutes\n' >&2
  rm -rf "$folder"
  mkdir -p "$folder"
  npm install --prefix "$folder" --no-audit --no-fund --ignore-scripts --no-package-lock --loglevel=error \
    "${npm_packages[@]}" >&2
  for name in litellm llama; do
    declare -n packages=${name}_packages
    python3 -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet --disable-pip-version-check --no-input "${packages[@]}"
  done
  printf '%s' "$wanted" >"$folder/installed"
fi
# Node looks for packages beside the script.
cp "$here"/*.mjs "$here"/*.py "$folder"
PROGRAM=$(realpath "${CARGO_TARGET_DIR:-target}/debug/chatelaine") \
  node --test --test-reporter=spec "$folder/repeats.test.mjs"
