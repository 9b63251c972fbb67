#!/bin/sh
# Installs GitHub Copilot CLI, whose AHP host make interop runs: about 190 MB from npm, into
# $AHP_COPILOT_DIR (default: ~/.cache/ahp-copilot-host). No package's install script is run.
set -eu
dir=${AHP_COPILOT_DIR:-$HOME/.cache/ahp-copilot-host}
version=1.0.102
if ! [ -d "$dir/node_modules/@github/copilot" ]; then
  mkdir -p "$dir"
  npm install --prefix "$dir" --ignore-scripts --no-save --no-audit --no-fund "@github/copilot@$version"
fi
echo "ready: make interop tests it"
