#!/bin/sh
# Builds the documentation's site into bin/site. The generator comes from npm once, into
# ~/.cache/ahp-site. SITE_BASE is the site's path at its server, / by default.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ahp-site
mkdir -p "$cache"
if ! cmp -s packaging/site/package-lock.json "$cache/installed"; then
	rm -rf "$cache/node_modules"
	cp packaging/site/package.json packaging/site/package-lock.json "$cache"
	(cd "$cache" && npm install --no-audit --no-fund --ignore-scripts)
	cp packaging/site/package-lock.json "$cache/installed"
fi
source=$(sed -n 's/^SOURCE=//p' packaging/owner.env)
node packaging/site/build.mjs "$root" "$cache/src"
cd "$cache"
SITE_SOURCE=$source npx vitepress build src --outDir "$root/bin/site"
echo "the site is in bin/site"
