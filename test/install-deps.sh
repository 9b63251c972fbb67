#!/bin/sh
# Installs what the tests use beside Go, where it is missing and can be
# installed: Node.js, whose JSON parser the frame reader is compared with.
set -eu
command -v node >/dev/null 2>&1 && exit 0
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  echo "installing nodejs (the frame reader is compared with its JSON parser)"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs >/dev/null
else
  echo "Node.js is missing: the comparison of the frame reader with its JSON parser will be skipped"
fi
