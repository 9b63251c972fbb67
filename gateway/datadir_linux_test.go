package gateway

import (
	"os"
	"testing"

	"ahprelay/test/procs"
)

// TestDataDirOfAnotherUser opens another user's data directory as root without the right to change
// owners, as in a container without this capability. The relay must start there.
func TestDataDirOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make another user's directory")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	err := procs.WithoutChown(func() error {
		d, err := openDataDir(dir)
		if err != nil {
			return err
		}
		return d.close()
	})
	if err != nil {
		t.Errorf("opening the data directory: %v; want no error", err)
	}
}
