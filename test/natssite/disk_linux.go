package natssite

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A Disk is a small file system in memory. A test can fill it.
type Disk struct{ Dir string }

// NewDisk mounts a disk with a size such as "16m" until the test ends. Without the
// permission to mount, it skips the test.
func NewDisk(t *testing.T, size string) Disk {
	t.Helper()
	d := Disk{t.TempDir()}
	if err := syscall.Mount("tmpfs", d.Dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("no right to mount a disk:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(d.Dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d Disk) filler() string { return filepath.Join(d.Dir, "other") }

// Fill writes a file until the disk is full.
func (d Disk) Fill(t *testing.T) {
	t.Helper()
	f, err := os.Create(d.filler())
	if err != nil {
		t.Fatal(err)
	}
	for size := 64 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(bytes.Repeat([]byte{1}, size))
		}
	}
	_ = f.Close() // the disk is full
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// Free removes the file that Fill has written.
func (d Disk) Free(t *testing.T) {
	t.Helper()
	if err := os.Remove(d.filler()); err != nil {
		t.Fatal(err)
	}
}
