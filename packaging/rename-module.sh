#!/bin/sh
# Renames the Go module everywhere: packaging/rename-module.sh example.com/org/ahp-relay
set -eu
cd "$(dirname "$0")/.."
[ $# = 1 ] || {
	echo "usage: packaging/rename-module.sh MODULE-PATH" >&2
	exit 1
}
old=$(sed -n 's/^module //p' go.mod)
case "$1" in
*[!A-Za-z0-9._/~-]* | /* | */ | "$old") echo "rename-module: $1 is not a new module path" >&2 && exit 1 ;;
esac
# Paths begin behind a quotation mark, a bracket, a space (module lines) or -X.
git grep -lI -e "$old" -- '*.go' '*go.mod' | while read -r file; do
	sed -i -e "s#\([\"[ ]\)$old/#\1$1/#g" -e "s#\"$old\"#\"$1\"#g" -e "s#^module $old\$#module $1#" "$file"
done
git diff --name-only -z -- '*.go' | xargs -0 gofmt -w
echo "renamed $old to $1; check with: make test"
