package audit

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The file may not grow while relays write a line, so that the line is cut at each of its
// bytes in turn. The lines that follow later must continue the chain.
func TestChainContinuesAfterAFullDisk(t *testing.T) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	limit := func(size int64) {
		now := old
		if size >= 0 {
			now.Cur = uint64(size)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &now); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(-1)
	const line = `{"event":"connect"}` + "\n"
	for written := int64(0); ; written++ {
		f, err := OpenFile(filepath.Join(t.TempDir(), "audit"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		write := func() error { _, err := f.Write([]byte(line)); return err }
		for range 2 {
			if err := write(); err != nil {
				t.Fatal(err)
			}
		}
		info, err := f.file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		limit(info.Size() + written)
		failed := write() != nil
		limit(info.Size() + written + 1)
		_ = write() // room for one byte more
		limit(-1)
		if err := write(); err != nil {
			t.Fatal(err)
		}
		text, err := os.Open(f.file.Name())
		if err != nil {
			t.Fatal(err)
		}
		defer text.Close()
		whole := 0
		_, err = Read(text, "", func(e Entry) error {
			if e.Fields != nil {
				whole++
			}
			return nil
		})
		if whole < 3 || err != nil {
			t.Errorf("a line is cut after %d bytes: Read gives %d whole lines, %v; want three or more without an error", written, whole, err)
		}
		if !failed {
			return
		}
	}
}
