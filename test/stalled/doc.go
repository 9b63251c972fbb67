// Package stalled tests a relay in a cgroup with little memory. Most clients read
// nothing that their host sends. The relay must survive, and the clients that read must
// get every message.
//
// make test runs it with few clients. The full test, from the module's root:
//
//	go test -count=1 -v ./test/stalled -args -clients 2000 -memory 512
package stalled
