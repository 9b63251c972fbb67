#!/bin/sh
# Installs what the tests use beside Go, where it is missing and can be
# installed: Node.js, whose JSON parser the frame reader is compared with,
# Chromium, in which the console is tested, busybox, whose shell runs the install
# script, and what makes networks with routers that translate addresses.
set -eu

# have NAME...: one of these commands is there.
have() {
  for name; do
    command -v "$name" >/dev/null 2>&1 && return
  done
  return 1
}

missing=
have node || missing="$missing nodejs"
have chromium chromium-browser google-chrome google-chrome-stable chrome || missing="$missing chromium"
have busybox || missing="$missing busybox"
have ip || missing="$missing iproute2"
have nft || missing="$missing nftables"
have conntrack || missing="$missing conntrack"
if [ -n "$missing" ]; then
  if have apt-get && [ "$(id -u)" = 0 ]; then
    echo "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of packages
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
  else
    echo "missing:$missing; the tests that need them will be skipped"
  fi
fi

# Chromium without a user interface: pages are tested in it, in half the time. Not all
# systems have a package of it; then Chromium itself is used.
have chromium-headless-shell chrome-headless-shell && exit 0
have apt-get && [ "$(id -u)" = 0 ] || exit 0
[ -n "$missing" ] || apt-get update -qq || exit 0
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null 2>&1 || true
