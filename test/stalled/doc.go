// Package stalled tests a relay in a cgroup with little memory, most of whose
// clients take nothing of what their host says: it lives, and nobody else notices.
//
// In make test there are few of them. All of it, from the top of the module:
//
//	go test -count=1 -v ./test/stalled -args -clients 2000 -memory 512
package stalled
