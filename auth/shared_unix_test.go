//go:build unix

package auth

import (
	"io/fs"
	"testing"
)

func TestGivenToGroup(t *testing.T) {
	const me, mine, fsGroup = 1000, 1000, 2000
	groups := []int{mine, fsGroup}
	for name, test := range map[string]struct {
		mode     fs.FileMode
		uid, gid uint32
		want     bool
	}{
		"secret of a kubelet":           {0o440, 0, fsGroup, true},
		"volume of a kubelet":           {0o660, 0, fsGroup, true},
		"own, given to another group":   {0o640, me, fsGroup, true},
		"root's, with the group as own": {0o440, 0, mine, true},
		"own, never given away":         {0o640, me, mine, false}, // a wrong chmod, not given to a group
		"a group of others":             {0o440, 0, 3000, false},
		"everybody":                     {0o444, 0, fsGroup, false},
		"everybody may write":           {0o662, 0, fsGroup, false},
	} {
		if got := givenToGroup(test.mode, test.uid, test.gid, me, mine, groups); got != test.want {
			t.Errorf("%s: %v; want %v", name, got, test.want)
		}
	}
	for name, test := range map[string]struct {
		mode fs.FileMode
		uid  uint32
		want bool
	}{
		"secret of a kubelet":    {fs.ModeDir | fs.ModeSticky | 0o777, 0, true},
		"volume of a kubelet":    {fs.ModeDir | 0o775, 0, true},
		"own":                    {fs.ModeDir | 0o700, me, true},
		"everybody puts files":   {fs.ModeDir | 0o777, me, false},
		"somebody else's volume": {fs.ModeDir | 0o755, 3000, false},
	} {
		if got := safeDirectory(test.mode, test.uid, me); got != test.want {
			t.Errorf("directory, %s: %v; want %v", name, got, test.want)
		}
	}
}
