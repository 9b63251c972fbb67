#!/bin/sh
# $1 is "upgrade" or "1" on an upgrade.
if [ -d /run/systemd/system ] && [ "$1" != upgrade ] && [ "$1" != 1 ]; then
	systemctl stop ahp-relay.service 'ahp-host-agent@*.service' || true
	systemctl disable ahp-relay.service ahp-host-agent@.service || true
fi
