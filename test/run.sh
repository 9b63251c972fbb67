#!/bin/sh
# Runs go test, and says once more at the end what failed.
set -u
# A program with the race detector waits for a second at its end, for goroutines
# that are not done; tests leave none.
export GORACE="${GORACE:-atexit_sleep_ms=0}"
log=$(mktemp)
trap 'rm -f "$log" "$log.status"' EXIT
{
	"${GO:-go}" test "$@" 2>&1
	echo $? >"$log.status"
} | tee "$log"
status=$(cat "$log.status")
if [ "$status" -ne 0 ]; then
	echo "== failed:"
	grep -E '^ *--- FAIL|^FAIL[[:space:]]|^panic:|WARNING: DATA RACE' "$log"
fi
exit "$status"
