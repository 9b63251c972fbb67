#!/bin/sh
# The service is not started automatically: systemctl enable --now ahp-relay
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
