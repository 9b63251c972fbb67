#!/bin/sh
# Installs an SSH server where it is missing and can be installed: what ssh -R
# does is measured beside the relay. It is not started as a service.
set -eu

if ! [ -x /usr/sbin/sshd ]; then
  if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "installing openssh-server"
    policy=/usr/sbin/policy-rc.d
    if ! [ -e "$policy" ]; then # services are not to be started
      trap 'rm -f "$policy"' EXIT
      printf '#!/bin/sh\nexit 101\n' >"$policy"
      chmod +x "$policy"
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server openssh-client >/dev/null
  else
    echo "missing: openssh-server; what it would be compared with is left out"
  fi
fi
# Where sshd, as root, keeps a process of its own.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
