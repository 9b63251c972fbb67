//go:build race

package browser_test

import (
	"context"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"ahprelay/test/procs"
)

// TestMain runs these tests without the race detector, even under go test -race,
// because the browser driver has had races that are not ours. The processes under test
// (relay, host-agent and host) run with it then.
func TestMain(*testing.M) {
	// The path is fixed, so no files are left over. exec replaces this process.
	program, err := filepath.Abs("../../bin/test/browser.test")
	if err != nil {
		log.Fatal(err)
	}
	if out, err := exec.CommandContext(context.Background(), "go", "test", "-race=false", "-tags=", "-ldflags=-s -w", "-c", "-o", program, ".").CombinedOutput(); err != nil {
		log.Fatalf("build without the race detector: %v\n%s", err, out)
	}
	log.Fatal(syscall.Exec(program, append([]string{program}, os.Args[1:]...), append(os.Environ(), procs.RaceEnv+"=yes")))
}
