#!/bin/sh
# Publishes the release in a folder: packaging/publish.sh dist [PART…]
#
# Parts, in this order: files packages images chart npm taps. Without a part, all. Each can
# be repeated. A pre-release, such as 1.0.0-rc.1, becomes no installed program's update: it stays
# out of the latest folder, and packages and taps are published only if they are named. Addresses come from packaging/owner.env, unless the environment has the same
# name. These come from the environment only:
#   FILES_TO      where rsync puts files of the release; default: gh release at SOURCE
#   PACKAGES_TO   where rsync puts the apt and yum repositories
#   SKOPEO_FLAGS, HELM_FLAGS  for a registry on this machine: --dest-tls-verify=false, --plain-http
set -eu # so no command stands before &&
dist=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC2034 # eval uses value
while IFS='=' read -r name value; do
	case "$name" in [A-Z]*) eval "$name=\${$name:-\$value}" ;; esac
done <"$here/owner.env"
version=$(find "$dist" -name 'ahp-relay-chart-*.tgz' | sed -n 's/.*ahp-relay-chart-\(.*\)\.tgz$/\1/p')
[ -n "$version" ] || { echo "publish: $dist is not the folder of a release" >&2 && exit 1; }
[ -f "$dist/SHA256SUMS.sig" ] || { echo "publish: $dist is not signed" >&2 && exit 1; }
pre=
case "$version" in *-*) pre=1 ;; esac
(cd "$dist" && sha256sum --check --quiet --strict SHA256SUMS)

# The signature comes last: without it, nothing installs.
files() {
	list=$(find "$dist" -maxdepth 1 -type f ! -name SHA256SUMS.sig)
	if [ -n "${FILES_TO:-}" ]; then
		# shellcheck disable=SC2086 # a list of files without spaces
		rsync -a $list "$FILES_TO/v$version/"
		rsync -a "$dist/SHA256SUMS.sig" "$FILES_TO/v$version/"
		[ -z "$pre" ] || return 0
		# The folder of the latest release.
		# shellcheck disable=SC2086
		rsync -a $list "$FILES_TO/latest/"
		rsync -a "$dist/SHA256SUMS.sig" "$FILES_TO/latest/"
	else
		gh release view "v$version" --repo "$SOURCE" >/dev/null 2>&1 || gh release create "v$version" --repo "$SOURCE" --draft ${pre:+--prerelease} --title "v$version"
		# shellcheck disable=SC2086
		gh release upload "v$version" --repo "$SOURCE" --clobber $list
		gh release upload "v$version" --repo "$SOURCE" --clobber "$dist/SHA256SUMS.sig"
		gh release edit "v$version" --repo "$SOURCE" --draft=false
	fi
}

packages() {
	[ -n "${PACKAGES_TO:-}" ] || { echo "publish: PACKAGES_TO is not set" >&2 && exit 1; }
	# Packages before the indexes that name them.
	rsync -a "$dist/apt/pool" "$PACKAGES_TO/apt/"
	rsync -a "$dist/yum/Packages" "$PACKAGES_TO/yum/"
	rsync -a "$dist/apt" "$dist/yum" "$PACKAGES_TO/"
}

images() {
	for archive in "$dist"/*_oci.tar; do
		name=$(basename "$archive" "_${version}_oci.tar")
		# shellcheck disable=SC2086 # several flags
		skopeo copy --all --preserve-digests ${SKOPEO_FLAGS:-} "oci-archive:$archive" "docker://$IMAGES/$name:$version"
		signature=${archive%.tar}.sig.tar
		tag=$(tar -xOf "$signature" index.json | sed -n 's/.*"org.opencontainers.image.ref.name":"[^":]*:\([^"]*\)".*/\1/p')
		# shellcheck disable=SC2086
		skopeo copy --preserve-digests ${SKOPEO_FLAGS:-} "oci-archive:$signature" "docker://$IMAGES/$name:$tag"
	done
}

# shellcheck disable=SC2086
chart() { helm push ${HELM_FLAGS:-} "$dist/ahp-relay-chart-$version.tgz" "oci://$IMAGES/charts"; }

# A package comes after those that it names. npm refuses a version that it has.
npm_packages() {
	tag=${pre:+next}
	for package in "$dist"/npm/*-linux-*.tgz "$dist"/npm/*-darwin-*.tgz "$dist"/npm/*-win32-*.tgz "$dist/npm/ahp-host-agent-$version.tgz" "$dist/npm/ahp-connect-$version.tgz"; do
		[ -f "$package" ] || continue
		name=$(basename "$package" "-$version.tgz")
		[ "$(npm view "$name@$version" version 2>/dev/null)" = "$version" ] || npm publish --access public --tag "${tag:-latest}" "$package"
	done
}

# tap REPOSITORY FOLDER commits a folder of the release to a repository.
tap() {
	[ -n "$1" ] || { echo "publish: no repository for $2" >&2 && exit 1; }
	work=$(mktemp -d)
	git clone --quiet "$1" "$work"
	mkdir -p "$work/$(basename "$2")"
	cp "$dist/$2"/* "$work/$(basename "$2")/"
	git -C "$work" add -A
	git -C "$work" diff --cached --quiet || git -C "$work" commit --quiet --message "ahp-relay $version"
	git -C "$work" push --quiet origin HEAD
	rm -rf "$work"
}

all="files packages images chart npm taps"
[ -z "$pre" ] || all="files images chart npm"
# shellcheck disable=SC2086 # a list of parts
[ $# -gt 0 ] || set -- $all
for part; do
	echo "publish: $part"
	case "$part" in
	files | packages | images | chart) $part ;;
	npm) npm_packages ;;
	taps)
		tap "${TAP:-}" homebrew/Formula
		tap "${BUCKET:-}" scoop/bucket
		;;
	*) echo "publish: unknown part $part" >&2 && exit 1 ;;
	esac
done
