#!/bin/sh
# Installs host-agent, ahp-connect or relay for this user.
#
#   curl -fsSL @LATEST@/install.sh | sh
#   curl -fsSL @LATEST@/install.sh | sh -s -- --version 1.0.0 relay
#
# Nothing is installed unless the release's signature and the archive's checksum are
# right. A failed run leaves earlier programs as they were.
set -eu

latest='@LATEST@'
versions='@VERSIONS@'
public_key='@PUBLIC_KEY@'

usage() {
	cat <<'TEXT'
usage: install.sh [--version V] [--dir DIR] [--from URL] [PROGRAM…]

  PROGRAM         host-agent, ahp-connect or relay; default: host-agent and ahp-connect
  --version V     install this version; default: the latest
  --dir DIR       directory for the programs; default: ~/.local/bin
  --from URL      folder of a release, for a mirror; its signature must still be ours
TEXT
}

fail() {
	echo "install: $*" >&2
	exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# get FILE writes $from/FILE to $work/FILE, whole or not at all.
get() {
	if has curl; then
		curl -fsSL --retry 3 --connect-timeout 20 -o "$work/$1.part" "$from/$1" || fail "$from/$1 could not be downloaded; run the same command again"
	elif has wget; then
		wget -q -O "$work/$1.part" "$from/$1" || fail "$from/$1 could not be downloaded; run the same command again"
	else
		fail "neither curl nor wget is installed; install one of them, or download $from/$1 in a browser"
	fi
	mv "$work/$1.part" "$work/$1"
}

# digest FILE prints the SHA-256 of a file.
digest() {
	if has sha256sum; then
		sha256sum "$1" | cut -d ' ' -f 1
	elif has shasum; then
		shasum -a 256 "$1" | cut -d ' ' -f 1
	else
		openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
	fi
}

# check_signature ends the run unless our key signed SHA256SUMS.
check_signature() {
	has openssl || fail "openssl is not installed, and without it the release's signature cannot be checked; install openssl and run the same command again"
	printf '%s\n' "$public_key" >"$work/key.pem"
	openssl base64 -d -A -in "$work/SHA256SUMS.sig" -out "$work/signature" 2>/dev/null || fail "$from/SHA256SUMS.sig is not a signature"
	openssl dgst -sha256 -verify "$work/key.pem" -signature "$work/signature" "$work/SHA256SUMS" >/dev/null 2>&1 ||
		fail "the signature of $from/SHA256SUMS is wrong: the release was altered, or is not ours; nothing was installed"
}

# system and processor name this machine as archives do.
system() {
	case "$(uname -s)" in
	Linux) echo linux ;;
	Darwin) echo darwin ;;
	*) fail "there is no build for $(uname -s); on Windows, use install.ps1" ;;
	esac
}

processor() {
	case "$(uname -m)" in
	x86_64 | amd64) echo amd64 ;;
	aarch64 | arm64) echo arm64 ;;
	*) fail "there is no build for processors of type $(uname -m)" ;;
	esac
}

# fetch_program NAME downloads a program to $work/NAME.program and checks it.
fetch_program() {
	archive=$(sed -n "s/^[0-9a-f]\{64\}  \(${1}_[^/]*_$target\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
	[ -n "$archive" ] || fail "$from has no $1 for $target"
	[ "$(printf '%s\n' "$archive" | wc -l)" -eq 1 ] || fail "$from/SHA256SUMS names more than one archive of $1 for $target"
	want=$(sed -n "s/^\([0-9a-f]\{64\}\)  $archive\$/\1/p" "$work/SHA256SUMS")
	get "$archive"
	[ "$(digest "$work/$archive")" = "$want" ] || fail "$from/$archive does not have the signed checksum: the download was altered or cut; nothing was installed"
	tar -xzf "$work/$archive" -C "$work" || fail "$archive could not be unpacked; is the disk full?"
	mv "$work/${archive%.tar.gz}/$1" "$work/$1.program"
	"$work/$1.program" --version >/dev/null 2>&1 || fail "the new $1 does not start on this machine; nothing was installed"
	echo "${archive%_"$target".tar.gz}" >"$work/$1.installed"
}

# place FILE NAME MODE puts a file into the directory, where it takes the place of an earlier
# file at once: a program that runs goes on with the earlier file.
place() {
	if cp "$work/$1" "$dir/.$2.new" && chmod "$3" "$dir/.$2.new" && mv -f "$dir/.$2.new" "$dir/$2"; then
		return
	fi
	rm -f "$dir/.$2.new"
	fail "$dir/$2 could not be written; is the disk full?"
}

main() {
	from=$latest
	dir=${HOME:+$HOME/.local/bin}
	programs=
	while [ $# -gt 0 ]; do
		case "$1" in
		--help | -h)
			usage
			exit 0
			;;
		--version | --dir | --from)
			[ $# -gt 1 ] || fail "$1 needs a value"
			case "$1" in
			--version) from=$versions/v${2#v} ;;
			--dir) dir=$2 ;;
			--from) from=${2%/} ;;
			esac
			shift
			;;
		host-agent | ahp-connect | relay) programs="$programs $1" ;;
		*)
			usage >&2
			fail "unknown argument $1"
			;;
		esac
		shift
	done
	programs=${programs:-host-agent ahp-connect}
	[ -n "$dir" ] || fail "HOME is not set; name a directory with --dir"
	target=$(system)_$(processor)
	{ mkdir -p "$dir" && [ -w "$dir" ]; } 2>/dev/null || fail "$dir cannot be written; choose another directory with --dir"
	work=$(mktemp -d) || fail "no temporary directory could be made; set TMPDIR to a directory that can be written"
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	get SHA256SUMS
	get SHA256SUMS.sig
	check_signature
	for program in $programs; do
		fetch_program "$program"
	done
	for program in $programs; do
		place "$program.program" "$program" 755
		# The mark allows the program's own update command to replace it.
		place "$program.installed" ".$program.installed" 644
		echo "installed $("$dir/$program" --version) in $dir"
	done
	case ":$PATH:" in
	*":$dir:"*) prefix= ;;
	*)
		prefix=$dir/
		echo "$dir is not on your PATH; add it with: export PATH=\"$dir:\$PATH\""
		;;
	esac
	for program in $programs; do
		case "$program" in
		host-agent) echo "next: ${prefix}host-agent up https://YOUR-RELAY" ;;
		ahp-connect) echo "next: ${prefix}ahp-connect login https://YOUR-RELAY" ;;
		relay) echo "next: ${prefix}relay serve --data-dir ~/relay-data" ;;
		esac
	done
}

# The last line starts everything, so a script that was cut off does nothing.
main "$@"
