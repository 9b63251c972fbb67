package unauthenticated_test

import (
	"strings"
	"testing"

	"ahprelay/internal/unauthenticated"
)

func TestOldestOfBusiestGroupIsEvicted(t *testing.T) {
	table := unauthenticated.New(unauthenticated.Bounds{Total: 4})
	var gone []string
	conns := map[string]*unauthenticated.Entry{}
	enter := func(names ...string) {
		for _, name := range names {
			conns[name] = table.Enter(name[:1], func() { gone = append(gone, name) })
		}
	}
	enter("a1", "a2", "a3", "b1", "b2")
	conns["a2"].Leave()
	enter("c1", "b3")
	conns["a3"].Leave()
	enter("c2", "c3")
	// The new connection stays if no group is larger than its own group.
	enter("d1", "e1", "f1", "g1", "h1", "i1")
	if got := strings.Join(gone, " "); got != "a1 b1 c1 b2 c2 b3 c3 d1 e1" {
		t.Errorf("the evicted connections are %s; want the oldest of the largest group", got)
	}
	for _, c := range conns {
		c.Leave()
		c.Leave()
		c.Next(false)
		c.Authenticated()
	}
	if waiting, groups := table.Len(); waiting != 0 || groups != 0 {
		t.Errorf("%d connections of %d groups are left; want none", waiting, groups)
	}
}

func TestIdleConnectionIsEvictedBeforeActiveOnes(t *testing.T) {
	table := unauthenticated.New(unauthenticated.Bounds{Group: 2})
	gone := ""
	a := table.Enter("a", func() { gone += "a" })
	b := table.Enter("a", func() { gone += "b" })
	a.Next(false)
	b.Next(true)
	table.Enter("a", func() { gone += "c" })
	if gone != "b" {
		t.Errorf("the evicted connection is %q; want b, which is idle", gone)
	}
}
