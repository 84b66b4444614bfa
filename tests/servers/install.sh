#!/usr/bin/env bash
# Installs the published MCP servers and clients that the tests run against, beside this file: node_modules, .venv,
# .venv-llama-index, .venv-fastmcp-2, and .uv with the installer. Done before, it ends at once; a changed package-lock.json or list of
# requirements installs again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf 'tests/servers: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
fingerprint() { cat "$@" | cksum; }

# Runs a command as root, or says what to run.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo "$@"
    else die "needs root once; run: sudo $*"
    fi
}

apt_install() {
    command -v apt-get >/dev/null || die "install $* with your package manager and run this again"
    say "installing $* from the distribution"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

install_node() {
    local stamp=node_modules/.stamp want
    want=$(fingerprint package.json package-lock.json)
    [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
    command -v npm >/dev/null || apt_install nodejs npm
    say "installing the npm servers"
    npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >&2
    printf '%s' "$want" >"$stamp"
}

# uv installs in seconds what pip installs in a minute. It is in a virtual environment of its own.
uv=.uv/bin/uv
install_uv() {
    local version=0.13.9
    [ "$($uv --version 2>/dev/null | cut -d ' ' -f 2)" = "$version" ] && return
    command -v python3 >/dev/null || apt_install python3 python3-venv
    # Debian's python3 comes without ensurepip.
    if ! python3 -m venv --clear .uv >/dev/null 2>&1; then
        apt_install python3-venv
        python3 -m venv --clear .uv
    fi
    .uv/bin/pip install --quiet --disable-pip-version-check --no-input --no-compile "uv==$version" >&2
}

# Installs a list of requirements into a virtual environment of its own.
install_python() {
    local venv=$1 requirements=$2 stamp=$1/.stamp want
    want=$(fingerprint "$requirements")
    [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
    install_uv
    say "installing the Python packages of $requirements"
    $uv venv --quiet --clear --python .uv/bin/python "$venv" >&2
    $uv pip install --quiet --python "$venv/bin/python" --compile-bytecode -r "$requirements" >&2
    printf '%s' "$want" >"$stamp"
}

install_node
install_python .venv requirements.txt
# LlamaIndex wants an older openai than the other clients.
install_python .venv-llama-index llama-index.txt
install_python .venv-fastmcp-2 fastmcp-2.txt
