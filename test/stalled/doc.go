// Package stalled tests a relay in a cgroup with little memory while most
// clients read nothing of their host's output: the relay survives, and the
// remaining clients are not affected.
//
// make test runs it with few clients. The full test, from the module's root:
//
//	go test -count=1 -v ./test/stalled -args -clients 2000 -memory 512
package stalled
