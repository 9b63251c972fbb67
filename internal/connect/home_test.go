package connect_test

import (
	"testing"

	"ahprelay/internal/connect"
)

// TestIdleNeedsAFileLock asks whether ahp-connect up runs, while it does and while it does not. A system without file locks,
// such as Windows, cannot know that, so up must count as running there: ahp-connect open refuses otherwise.
func TestIdleNeedsAFileLock(t *testing.T) {
	home := &connect.Home{Dir: t.TempDir()}
	wants := func(when string, want bool) {
		t.Helper()
		if idle, err := home.Idle(); idle != want || err != nil {
			t.Errorf("%s: Idle = %v, %v; want %v", when, idle, err, want)
		}
	}
	wants("without up", true)
	release, err := home.Lock() // as ahp-connect up does
	if err != nil {
		t.Fatal(err)
	}
	wants("while up runs", false)
	release()
	wants("after up", true)
	defer connect.WithoutFileLocks()()
	wants("without file locks", false)
}
