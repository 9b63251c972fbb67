package memory

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestReleasedCodeRunsOn calls ReleaseCode, which must unmap a large part of the program's file.
// The program must still run.
func TestReleasedCodeRunsOn(t *testing.T) {
	mapped := func() (kB int) {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, field, _ := strings.Cut(string(status), "RssFile:")
		if _, err := fmt.Sscan(field, &kB); err != nil {
			t.Fatal(err)
		}
		return kB
	}
	before := mapped()
	ReleaseCode()
	after := mapped()
	if before-after < 256 {
		t.Errorf("files in memory: %d kB before, %d kB after; want at least 256 kB less", before, after)
	}
	t.Logf("%d kB of files mapped before, %d kB after", before, after)
}
