#!/bin/sh
# run.sh PACKAGES: make lint beside the tests of the packages, with the race detector
# except for those in $PLAIN. Installs what they need. Repeats the failures at the end.
set -u
go=${GO:-go}
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
trap 'trap - TERM; kill 0' INT TERM # background jobs ignore an interrupt
# A program with the race detector waits for a second at its end, for goroutines
# that are not done; tests leave none.
export GORACE="${GORACE:-atexit_sleep_ms=0}"
# No debugger looks at these programs, and a compiler lives only for seconds: without
# debug information, and with less garbage collected, compiling takes 30 % less of the
# processors. The tests themselves collect garbage as usual.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-gcflags=all=-dwarf=false"
alarm=${ALARM:-30} # minutes after which a test program ends itself
tests() { GOGC=400 "$go" test -vet=off -timeout "${alarm}m" -exec "env -u GOGC" "$@"; }

# stuck prints the state of each thread of a test program that its alarm has not ended.
# go test kills such a program soon afterwards, and its stacks may be lost. Three rounds
# show whether a thread runs, waits for a processor, or waits in the kernel.
stuck() {
	[ -d /proc/self/task ] || return 0 # another system than Linux
	until [ -e "$log/plain.status" ] && [ -e "$log/race.status" ]; do
		sleep 5
		ps -eo pid=,etimes=,args= | while read -r pid seconds program arguments; do
			case $program in */go-build*.test) ;; *) continue ;; esac
			[ "$seconds" -lt 1000000 ] || continue # ps had no start time
			[ "$seconds" -gt $((alarm * 60 + 20)) ] && [ ! -e "$log/stuck.$pid" ] || continue
			: >"$log/stuck.$pid"
			for round in 1 2 3; do
				echo "== stuck for $seconds s, round $round: $pid $program $arguments"
				for thread in "/proc/$pid/task"/*; do
					# shellcheck disable=SC2046 # in one line
					echo "thread ${thread##*/}:" $(grep -hE '^(State|Sig(Pnd|Blk)|voluntary|nonvol)' "$thread/status") "run, wait, slices:" $(cat "$thread/schedstat")
					cat "$thread/stack" 2>/dev/null # only root may
				done
				sleep 2
			done
		done
	done
}

# job NAME COMMAND... runs a command in the background, and keeps its output and status.
job() {
	name=$1
	shift
	{
		"$@" 2>&1
		echo $? >"$log/$name.status"
	} | tee "$log/$name.log" &
}

sh test/install-deps.sh & # mostly waits, for the network and the disk
deps=$!
GOGC=400 "$go" run ./test/cmd/programs && wait $deps || exit
export AHP_TEST_PROGRAMS_BUILT=yes
tested() { "$go" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "$@"; } # lint compiles the others
# shellcheck disable=SC2086 # lists of packages
plain=$(tested $PLAIN) && all=$(tested "$@") || exit
raced=$(printf '%s\n' "$all" | grep -vxF "$plain")
# Tests wait for much of their time, so more packages than there are processors are at
# work. With seven at a time, tests of clusters missed their deadlines.
cores=$(getconf _NPROCESSORS_ONLN)
# shellcheck disable=SC2086
{
	job stuck stuck
	job plain tests -p "$cores" $plain
	job race tests -p $((cores + 1)) -race -tags lockorder $raced
	job lint nice "${MAKE:-make}" --no-print-directory lint
}
wait
failed=0
for name in lint plain race; do
	[ "$(cat "$log/$name.status")" = 0 ] && continue
	failed=1
	echo "== failed: $name"
	grep -E '^ *--- FAIL|^FAIL[[:space:]]|^panic:|WARNING: DATA RACE|^make.*\*\*\*' "$log/$name.log"
done
exit $failed
