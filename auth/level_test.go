package auth_test

import (
	"testing"

	"ahprelay/auth"
)

func TestEachLevelHasTwoNames(t *testing.T) {
	for name, want := range map[string]auth.Access{
		"look": auth.AccessRead, "read": auth.AccessRead, "talk": auth.AccessTalk, "approve": auth.AccessApprove,
		"operate": auth.AccessWrite, "write": auth.AccessWrite, "own": auth.AccessAdmin, "admin": auth.AccessAdmin,
	} {
		var got auth.Access
		if err := got.UnmarshalText([]byte(name)); err != nil || got != want {
			t.Errorf("%s is read as %q, %v; want %q", name, got, err, want)
		}
	}
	levels := auth.Levels()
	for i, a := range levels {
		var again auth.Access
		if err := again.UnmarshalText([]byte(a.Level())); err != nil || again != a {
			t.Errorf("the level %q has the name %q, which is read as %q; want the same level", a, a.Level(), again)
		}
		for j, b := range levels {
			if got := a.Includes(b); got != (i >= j) {
				t.Errorf("the level %s includes %s: %v; want %v", a.Level(), b.Level(), got, i >= j)
			}
			if got := a.Less(b); got != levels[min(i, j)] {
				t.Errorf("the lower level of %s and %s is %q; want %s", a.Level(), b.Level(), got, levels[min(i, j)])
			}
		}
		for _, none := range []auth.Access{"", "root", "Write", "look "} {
			if none.Includes(a) || none.Less(a).Includes(levels[0]) || a.Less(none).Includes(levels[0]) {
				t.Errorf("%q, which is no level, includes a level; want none", none)
			}
		}
	}
}
