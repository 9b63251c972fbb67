package gateway

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
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
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread, which loses the right, ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		err := unix.Capget(&header, &rights[0])
		if err == nil {
			rights[0].Effective &^= 1 << unix.CAP_CHOWN
			err = unix.Capset(&header, &rights[0])
		}
		var d *dataDir
		if err == nil {
			d, err = openDataDir(dir)
		}
		if err == nil {
			err = d.close()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Errorf("opening the data directory: %v; want no error", err)
	}
}
